#include "train/arrivals.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

namespace fvlm::train {

// Nobody gets memory that a copy still reads or writes.
Arrivals::~Arrivals() {
  if (!copied_) return;
  try {
    copied_->wait();
  } catch (const c10::Error&) { // the device's, which tells it again with whatever comes next
  }
}

at::Tensor Arrivals::made() const {
  return at::empty(most_, at::TensorOptions(device_).dtype(at::kFloat));
}

at::Tensor Arrivals::slots(int64_t count) {
  if (!slots_.defined()) slots_ = made();
  return slots_.narrow(0, 0, count);
}

void Arrivals::bring(const at::Tensor& frames, std::shared_ptr<std::byte> memory, const at::Tensor& slots) {
  const int64_t used = frames.size(0), rest = slots.size(0) - used;
  if (overlaps_) {
    if (!waiting_.defined()) {
      waiting_ = made();
      free_ = runtime_.mark(); // others may have had that memory
    }
    if (copied_) copied_->wait(); // long ago, where packs are learnt one after the other
    memory_ = std::move(memory);
    const at::Tensor arriving = waiting_.narrow(0, 0, used);
    copied_ = runtime_.copy_beside(*free_, [arriving, frames] { arriving.copy_(frames, true); });
    runtime_.follow(*copied_);
    slots.narrow(0, 0, used).copy_(arriving);
    free_ = runtime_.mark();
  } else {
    slots.narrow(0, 0, used).copy_(frames);
  }
  if (rest > 0) slots.narrow(0, used, rest).zero_();
}

} // namespace fvlm::train
