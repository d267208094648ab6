#include "train/input_staging.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

namespace fvlm::train {

// Waits, so that no memory is released while a copy still uses it.
InputStaging::~InputStaging() {
  if (!copied_) return;
  try {
    copied_->wait();
  } catch (const c10::Error&) { // an error of the device, which the next call reports again
  }
}

at::Tensor InputStaging::allocate() const {
  return at::empty(max_shape_, at::TensorOptions(device_).dtype(at::kFloat));
}

at::Tensor InputStaging::slots(int64_t count) {
  if (!slots_.defined()) slots_ = allocate();
  return slots_.narrow(0, 0, count);
}

void InputStaging::stage(const at::Tensor& frames, std::shared_ptr<std::byte> memory, const at::Tensor& slots) {
  const int64_t used = frames.size(0), padding = slots.size(0) - used;
  if (overlaps_) {
    if (!incoming_.defined()) {
      incoming_ = allocate();
      incoming_free_ = runtime_.mark(); // the allocator may have reused memory with pending work
    }
    if (copied_) copied_->wait(); // finished long ago in a normal training loop
    host_memory_ = std::move(memory);
    const at::Tensor incoming = incoming_.narrow(0, 0, used);
    copied_ = runtime_.copy_beside(*incoming_free_, [incoming, frames] { incoming.copy_(frames, true); });
    runtime_.follow(*copied_);
    slots.narrow(0, 0, used).copy_(incoming);
    incoming_free_ = runtime_.mark();
  } else {
    slots.narrow(0, 0, used).copy_(frames);
  }
  if (padding > 0) slots.narrow(0, used, padding).zero_();
}

} // namespace fvlm::train
