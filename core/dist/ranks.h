// The ranks of a run: processes that train one model together. Alone, where nobody started several.
#pragma once
#include "dist/group.h"
#include "dist/key_value_store.h"
#include "dist/rendezvous.h"

#include <c10/core/Device.h>

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace fvlm::dist {

class Ranks {
 public:
  Ranks(); // one
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  // Waits for all ranks of the launch. `device` has the tensors that they reduce; `timeout` is how long they wait for a
  // rank before they take it for lost; so many ranks that follow each other are a context group, whose ranks share
  // sequences; `peer_copies`: copy engines exchange what they can (peer_group.h). Throws Error(device) where they do
  // not meet, Error(usage) where they cannot be divided so.
  static std::unique_ptr<Ranks> join(const Launch& launch, at::Device device, std::chrono::milliseconds timeout,
                                     int64_t context = 1, bool peer_copies = true);

  int64_t rank() const { return rank_; }
  int64_t count() const { return count_; }
  int64_t on_this_machine() const { return on_this_machine_; } // as far as the launcher says; else 1
  bool is_first() const { return rank_ == 0; }
  bool are_several() const { return count_ > 1; }

  // Place in the context group, and of the group among all groups, each of which has data of its own.
  int64_t context_rank() const { return rank_ % context_; }
  int64_t context_count() const { return context_; }
  int64_t data_rank() const { return rank_ / context_; }
  int64_t data_count() const { return count_ / context_; }

  // For tensors of the device; null where a process is alone.
  Group* group() const { return device_group_; }
  // Of the context group, in which ranks have context_rank() for a number; null where it is of one rank.
  Group* context_group() const { return context_group_; }

  // Of the host's numbers and texts. Alone, they do nothing.
  void sum(std::span<double> numbers) const;                     // in place
  std::string from_first(const std::string& text) const;         // rank 0's
  std::vector<std::string> gather(const std::string& own) const; // every rank's, any bytes

  // What this rank does now, which the others say of it if it is lost.
  void enter(const char* phase, const std::string& stage = {}, int64_t step = 0) const;
  // The same of a thread beside the main one; empty: it does nothing more. [any thread]
  void enter_beside(const std::string& what) const;
  // Around a wait for the device, which may wait for other ranks in turn.
  void wait_for_device(bool waits) const;
  // This rank fails: ends the others, which say so.
  void report_failure(const std::string& why) const;
  // Why a rank failed or was lost, once this one has heard of it. [any thread]
  std::optional<std::string> failure() const;

  // For a thread of its own, what the ranks tell each other beside the operations above: the keys below `name` in the
  // store where they met. Several ranks alone have one.
  std::unique_ptr<KeyValueStore> store(const std::string& name) const;
  std::chrono::milliseconds timeout() const { return timeout_; } // see join()

 private:
  struct Connection;
  void form_device_group(const Launch& launch, at::Device device, bool peer_copies);
  void form_contexts(bool by_nccl, std::chrono::milliseconds timeout);

  int64_t rank_ = 0, count_ = 1, on_this_machine_ = 1, context_ = 1;
  std::chrono::milliseconds timeout_{};
  Group *device_group_ = nullptr, *context_group_ = nullptr;
  std::unique_ptr<Connection> connection_; // null: alone
};

} // namespace fvlm::dist
