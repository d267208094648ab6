// Pending of work on the communication stream.
#pragma once
#include "device/runtime.h"
#include "dist/group.h"

#include <memory>
#include <utility>

namespace fvlm::dist {

class EventPending : public Pending {
 public:
  explicit EventPending(std::shared_ptr<device::Event> done) : done_(std::move(done)) {}
  void wait() override { device::runtime()->wait_event(*done_); }

 private:
  std::shared_ptr<device::Event> done_;
};

} // namespace fvlm::dist
