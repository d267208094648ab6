#include "check/operand.h"

#include "check/context.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

namespace fvlm::check {
namespace {

constexpr int64_t guard = 256;  // bytes before and behind
constexpr int16_t canary = -43; // 0xFFD5: NaN in every float type, and not the NaN of the poison

at::ScalarType bits_of(at::ScalarType dtype) {
  switch (c10::elementSize(dtype)) {
  case 1:
    return at::kByte;
  case 2:
    return at::kShort;
  case 4:
    return at::kInt;
  default:
    return at::kLong;
  }
}

// Bytes between two pages that are not there.
at::Tensor bytes_between_guard_pages(int64_t size) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  const int64_t inner = (size + 2 * guard + page - 1) / page * page, outer = inner + 2 * page;
  void* base = mmap(nullptr, static_cast<size_t>(outer), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) throw RowAborted{State::failed, "no memory for guard pages"};
  char* first = static_cast<char*>(base) + page;
  mprotect(first, static_cast<size_t>(inner), PROT_READ | PROT_WRITE);
  return at::from_blob(
      first, {inner}, [base, outer](void*) { munmap(base, static_cast<size_t>(outer)); }, at::kByte);
}

} // namespace

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  if (!a.is_cpu() || !a.is_contiguous() || !b.is_contiguous()) return at::equal(a, b);
  return a.sizes() == b.sizes() && std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

bool spreads(Placement placement) {
  return placement == Placement::wide_rows || placement == Placement::wide_heads ||
         placement == Placement::head_major || placement == Placement::odd_rows || placement == Placement::far_rows;
}

fvlm_dtype dtype_of(at::ScalarType dtype) {
  const auto bits = static_cast<uint8_t>(c10::elementSize(dtype) * 8);
  if (dtype == at::kBFloat16) return {FVLM_BFLOAT, bits, 1};
  if (at::isFloatingType(dtype)) return {FVLM_FLOAT, bits, 1};
  return {static_cast<uint8_t>(dtype == at::kByte ? FVLM_UINT : FVLM_INT), bits, 1};
}

at::ScalarType scalar_type(fvlm_dtype dtype) {
  for (auto type :
       {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kInt, at::kLong, at::kShort, at::kChar, at::kByte}) {
    fvlm_dtype candidate = dtype_of(type);
    if (candidate.code == dtype.code && candidate.bits == dtype.bits && dtype.lanes == 1) return type;
  }
  throw RowAborted{State::failed,
                   fmt::format("it asks for a tensor of type code {}, {} bits, {} lanes, which the ABI does not know",
                               dtype.code, dtype.bits, dtype.lanes)};
}

fvlm_device device_of(at::Device device) {
  return {device.is_cuda() ? FVLM_CUDA : FVLM_CPU, device.has_index() ? device.index() : 0};
}

Operand::Operand(std::string name, at::IntArrayRef shape, at::ScalarType dtype, at::Device device, Placement placement,
                 int64_t gaps)
    : name_(std::move(name)), dtype_(dtype), shape_(shape.vec()), strides_(shape.size(), 1) {
  const int64_t element = static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t rank = static_cast<int64_t>(shape_.size());
  for (int64_t d = rank - 2; d >= 0; --d) {
    strides_[d] = strides_[d + 1] * std::max<int64_t>(shape_[d + 1], 1);
    if ((placement == Placement::wide_rows || placement == Placement::wide_heads) && d == 0) strides_[d] += 16 * gaps;
    if (placement == Placement::wide_heads && d > 0) strides_[d] += 16;
    if (placement == Placement::odd_rows) strides_[d] += 1 + 2 * gaps;
    if (placement == Placement::far_rows && d == 0) strides_[d] = (int64_t{1} << 30) + 16 * gaps;
  }
  if (placement == Placement::head_major && rank == 3) {
    strides_[0] = std::max<int64_t>(shape_[2], 1);
    strides_[1] = strides_[0] * std::max<int64_t>(shape_[0], 1) + 16 * gaps;
  }
  int64_t extent = 1; // elements from the first to the last
  bool empty = false;
  for (int64_t d = 0; d < rank; ++d) {
    extent += (shape_[d] - 1) * strides_[d];
    empty = empty || shape_[d] == 0;
  }
  if (empty) extent = 0;
  const int64_t size = extent * element;

  if (placement == Placement::far_rows) {
    place_far(size);
  } else if ((placement == Placement::page_end || placement == Placement::page_start) && device.is_cpu()) {
    storage_ = bytes_between_guard_pages(size);
    offset_ = placement == Placement::page_start ? 0 : storage_.numel() - size;
  } else {
    storage_ = at::empty({(size + 3 * guard + element + 15) / 16 * 16}, at::TensorOptions(at::kByte).device(device));
    const auto address = reinterpret_cast<uintptr_t>(storage_.data_ptr());
    offset_ = guard + static_cast<int64_t>((guard - address % guard) % guard);
    if (placement == Placement::misaligned) offset_ += element;
  }
  // The elements themselves are left alone where they lie together: memory counts as used once it is touched.
  auto mark = [&](int64_t begin, int64_t end) {
    begin = (begin + 1) / 2 * 2, end = end / 2 * 2;
    if (begin < end) storage_.narrow(0, begin, end - begin).view(at::kShort).fill_(canary);
  };
  const bool dense = !spreads(placement);
  if (placement != Placement::far_rows) mark(0, dense ? offset_ : storage_.numel());
  if (dense) mark(offset_ + size, storage_.numel());
  view_ = at::from_blob(static_cast<char*>(storage_.data_ptr()) + offset_, shape_, strides_,
                        at::TensorOptions(dtype).device(device));
  std::ranges::copy(shape_, descriptor_->shape);
  std::ranges::copy(strides_, descriptor_->strides);
  descriptor_->tensor = {empty ? nullptr : view_.data_ptr(),
                         device_of(device),
                         static_cast<int32_t>(rank),
                         dtype_of(dtype),
                         descriptor_->shape,
                         descriptor_->strides,
                         0};
}

// Only the pages on which rows lie are there.
void Operand::place_far(int64_t size) {
  const int64_t page = sysconf(_SC_PAGESIZE), element = static_cast<int64_t>(c10::elementSize(dtype_));
  const auto whole = static_cast<size_t>((std::max<int64_t>(size, 1) + page - 1) / page * page);
  void* base = mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED)
    throw RowAborted{State::not_applicable, "this machine gives no addresses for rows so far apart"};
  storage_ = at::from_blob(
      base, {1}, [base, whole](void*) { munmap(base, whole); }, at::kByte);
  int64_t row = element; // bytes of one
  for (size_t d = 1; d < shape_.size(); ++d) row += (shape_[d] - 1) * strides_[d] * element;
  for (int64_t i = 0; size > 0 && i < shape_[0]; ++i) {
    const int64_t begin = i * strides_[0] * element / page * page, end = i * strides_[0] * element + row;
    mprotect(static_cast<char*>(base) + begin, static_cast<size_t>(end - begin), PROT_READ | PROT_WRITE);
  }
}

at::Tensor Operand::window(const at::Tensor& storage) const {
  return at::from_blob(static_cast<char*>(storage.data_ptr()) + offset_, shape_, strides_,
                       at::TensorOptions(bits_of(dtype_)).device(storage.device()));
}

} // namespace fvlm::check
