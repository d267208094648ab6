// The ranks of a run: processes that train one model together. Alone, where nobody started several.
#pragma once
#include "dist/group.h"
#include "dist/rendezvous.h"

#include <c10/core/Device.h>

#include <chrono>
#include <memory>
#include <span>
#include <string>

namespace fvlm::dist {

class Ranks {
 public:
  Ranks(); // one
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  // Waits for all ranks of the launch. `device` has the tensors that they reduce; `timeout` is how long they wait for a
  // rank before they take it for lost. Throws Error(device) where they do not meet.
  static std::unique_ptr<Ranks> join(const Launch& launch, at::Device device, std::chrono::milliseconds timeout);

  int64_t rank() const { return rank_; }
  int64_t count() const { return count_; }
  int64_t on_this_machine() const { return on_this_machine_; } // as far as the launcher says; else 1
  bool is_first() const { return rank_ == 0; }
  bool are_several() const { return count_ > 1; }

  // For tensors of the device; null where a process is alone.
  Group* group() const { return device_group_; }

  // Of the host's numbers and texts. Alone, they do nothing.
  void sum(std::span<double> numbers) const;             // in place
  std::string from_first(const std::string& text) const; // rank 0's

  // What this rank does now, which the others say of it if it is lost.
  void enter(const char* phase, const std::string& stage = {}, int64_t step = 0) const;
  // Around a wait for the device, which may wait for other ranks in turn.
  void wait_for_device(bool waits) const;
  // This rank fails: ends the others, which say so.
  void report_failure(const std::string& why) const;

 private:
  struct Connection;
  int64_t rank_ = 0, count_ = 1, on_this_machine_ = 1;
  Group* device_group_ = nullptr;
  std::unique_ptr<Connection> connection_; // null: alone
};

} // namespace fvlm::dist
