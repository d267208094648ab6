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

at::Tensor Arrivals::arriving(int64_t count) {
  if (!waiting_.defined()) {
    waiting_ = made();
    free_ = runtime_.mark(); // others may have had that memory
  }
  return waiting_.narrow(0, 0, count);
}

void Arrivals::copy(const at::Tensor& frames, std::shared_ptr<std::byte> memory, int64_t count) {
  const at::Tensor arriving = this->arriving(count);
  if (copied_) copied_->wait(); // long ago, where packs are learnt one after the other
  memory_ = std::move(memory);
  const int64_t used = frames.size(0);
  copied_ = runtime_.copy_beside(*free_, [arriving, frames, used, count] {
    arriving.narrow(0, 0, used).copy_(frames, true);
    if (count > used) arriving.narrow(0, used, count - used).zero_();
  });
}

void Arrivals::bring(const at::Tensor& frames, std::shared_ptr<std::byte> memory, const at::Tensor& slots) {
  const int64_t used = frames.size(0), rest = slots.size(0) - used;
  if (overlaps_) {
    copy(frames, std::move(memory), used);
    runtime_.follow(*copied_);
    slots.narrow(0, 0, used).copy_(waiting_.narrow(0, 0, used));
    free_ = runtime_.mark();
  } else {
    slots.narrow(0, 0, used).copy_(frames);
  }
  if (rest > 0) slots.narrow(0, used, rest).zero_();
}

void Arrivals::bring(const at::Tensor& frames, std::shared_ptr<std::byte> memory, int64_t count, const Use& use) {
  copy(frames, std::move(memory), count);
  free_ = use(waiting_.narrow(0, 0, count), copied_);
}

} // namespace fvlm::train
