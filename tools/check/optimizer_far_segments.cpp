// Arenas of which only the segments' pages are mapped: segments at offsets beyond 32 bits, or at the ends of pages.
#include "check/formulas.h"
#include "check/operand.h"
#include "check/optimizer.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <deque>
#include <sys/mman.h>
#include <unistd.h>

namespace fvlm::check {
namespace {

class SparseArena {
 public:
  SparseArena(int64_t elements, at::ScalarType dtype, const std::vector<std::pair<int64_t, int64_t>>& parts)
      : dtype_(dtype), size_(static_cast<size_t>(elements) * c10::elementSize(dtype)) {
    base_ = static_cast<char*>(mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (base_ == MAP_FAILED) throw RowAborted{State::not_applicable, "no address space for arenas of 2^31 elements"};
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    for (const auto& [offset, count] : parts) {
      const size_t begin = static_cast<size_t>(offset) * c10::elementSize(dtype) / page * page;
      const size_t end = static_cast<size_t>(offset + count) * c10::elementSize(dtype);
      mprotect(base_ + begin, end - begin, PROT_READ | PROT_WRITE); // up to the end of the last page
    }
    tensor_ = {base_, {FVLM_CPU, 0}, 1, dtype_of(dtype), &shape_, &stride_, 0};
    shape_ = elements;
  }
  ~SparseArena() { munmap(base_, size_); }
  SparseArena(const SparseArena&) = delete;
  SparseArena& operator=(const SparseArena&) = delete;
  fvlm_tensor* abi() { return &tensor_; }
  at::Tensor part(int64_t offset, int64_t count) const {
    return at::from_blob(base_ + static_cast<size_t>(offset) * c10::elementSize(dtype_), {count},
                         at::TensorOptions(dtype_));
  }

 private:
  at::ScalarType dtype_;
  size_t size_;
  char* base_ = nullptr;
  int64_t shape_ = 0, stride_ = 1;
  fvlm_tensor tensor_{};
};

struct Stepped {
  std::string failure;
  std::vector<at::Tensor> masters;
};

constexpr int64_t rows = 6, cols = 7, count = rows * cols;

// One step of two matrices, which begin at these elements.
Stepped step_apart(Context& context, int64_t first, int64_t second, at::ScalarType parameter_dtype = at::kFloat) {
  const auto& table = context.table<fvlm_optimizer_v1>();
  const fvlm_optimizer_segment segments[] = {{first, rows, cols, 0}, {second, rows, cols, 0}};
  const int64_t elements = second + count + 4096;
  const fvlm_dtype float32 = dtype_of(at::kFloat);
  fvlm_optimizer_query query{};
  query.struct_size = sizeof query;
  query.device = {FVLM_CPU, 0};
  query.gradient_dtype = query.state_dtype = float32;
  query.parameter_dtype = dtype_of(parameter_dtype);
  query.elements = elements, query.segment_count = 2, query.group_count = 1, query.segments = segments;
  if (const fvlm_support answer = query_support(table.supports, query); answer.score <= 0)
    throw RowAborted{State::not_applicable, fmt::format("supports() says no: {}", answer.reason)};
  fvlm_requirements needs{};
  needs.struct_size = sizeof needs;
  Instance own(context, context.host());
  if (table.requirements(own.get(), &query, &needs, nullptr) != FVLM_OK) return {"requirements() failed", {}};
  if (needs.forward_workspace > uint64_t{1} << 28)
    throw RowAborted{State::not_applicable, "it asks for more than 256 MiB of workspace"};
  fvlm_optimizer_state states[FVLM_MAX_STATES] = {};
  const int32_t state_count = table.states(&query, states);

  const std::vector<std::pair<int64_t, int64_t>> parts{{first, count}, {second, count}};
  SparseArena master(elements, at::kFloat, parts), gradient(elements, at::kFloat, parts),
      parameter(elements, parameter_dtype, parts);
  std::deque<SparseArena> state;
  for (int32_t i = 0; i < state_count; ++i) state.emplace_back(elements, scalar_type(states[i].dtype), parts);
  for (size_t i = 0; i < parts.size(); ++i) {
    master.part(parts[i].first, count).copy_(normal({count}, 5 + i, at::kFloat));
    gradient.part(parts[i].first, count).copy_(normal({count}, 15 + i, at::kFloat));
  }
  std::vector<float> hyper;
  for (int32_t i = 0; i < table.hyperparameter_count; ++i)
    hyper.push_back(
        static_cast<float>(i == 0 ? std::clamp(0.01, table.hyperparameters[0].least, table.hyperparameters[0].most)
                                  : table.hyperparameters[i].fallback));
  const auto tensor = [](void* data, fvlm_dtype dtype, std::vector<int64_t>& shape, std::vector<int64_t>& strides) {
    strides.assign(shape.size(), 1);
    for (size_t d = shape.size() - 1; d-- > 0;) strides[d] = strides[d + 1] * shape[d + 1];
    return fvlm_tensor{data, {FVLM_CPU, 0}, static_cast<int32_t>(shape.size()), dtype, shape.data(), strides.data(), 0};
  };
  std::vector<int64_t> listed_shape{2, 4}, hyper_shape{1, static_cast<int64_t>(hyper.size())}, one{1}, strides[6];
  std::vector<int64_t> listed;
  for (const auto& s : segments) listed.insert(listed.end(), {s.offset, s.rows, s.cols, s.group});
  int64_t step_number = 1;
  float scale = 1;
  int32_t skip = 0;
  const fvlm_tensor listed_tensor = tensor(listed.data(), dtype_of(at::kLong), listed_shape, strides[0]),
                    hyper_tensor = tensor(hyper.data(), float32, hyper_shape, strides[1]),
                    step_tensor = tensor(&step_number, dtype_of(at::kLong), one, strides[2]),
                    scale_tensor = tensor(&scale, float32, one, strides[3]),
                    skip_tensor = tensor(&skip, dtype_of(at::kInt), one, strides[4]);
  const Pages workspace(std::max<uint64_t>(needs.forward_workspace, 1));
  char text[512] = "";
  fvlm_error error{sizeof error, sizeof text, text};
  fvlm_call call{};
  call.struct_size = sizeof call;
  call.flags = FVLM_DETERMINISTIC;
  call.device = {FVLM_CPU, 0};
  call.workspace = workspace.data();
  call.workspace_size = needs.forward_workspace;
  call.host = context.host().abi();
  call.error = &error;
  if (table.prepare && table.prepare(own.get(), &call, &query) != FVLM_OK) return {std::string("prepare: ") + text, {}};
  fvlm_optimizer_step arguments{};
  arguments.struct_size = sizeof arguments;
  arguments.master = master.abi();
  arguments.gradient = gradient.abi();
  if (parameter_dtype != at::kFloat) arguments.parameter = parameter.abi();
  for (size_t i = 0; i < state.size(); ++i) arguments.state[i] = state[i].abi();
  arguments.segments = &listed_tensor, arguments.hyper = &hyper_tensor, arguments.step = &step_tensor;
  arguments.scale = &scale_tensor, arguments.skip = &skip_tensor;
  if (table.step(own.get(), &call, &query, &arguments) != FVLM_OK) return {std::string("step: ") + text, {}};
  Stepped stepped;
  for (const auto& [offset, size] : parts) stepped.masters.push_back(master.part(offset, size).clone());
  return stepped;
}

} // namespace

Outcome far_segments(Context& context) {
  if (!context.device.is_cpu()) return not_applicable("arenas without memory are for a CPU");
  const Stepped near = step_apart(context, 3, 103);
  if (!near.failure.empty()) return failed(near.failure);
  for (int64_t apart : {(int64_t{1} << 31) + 64, (int64_t{1} << 32) + 64}) {
    const Stepped far = step_apart(context, 3, 3 + apart);
    if (!far.failure.empty()) return failed("segments {} elements apart: {}", apart, far.failure);
    for (size_t i = 0; i < near.masters.size(); ++i)
      if (!at::equal(near.masters[i], far.masters[i]))
        return failed("a segment at element {} is stepped differently from one at {}", 3 + apart, 103);
  }
  return ok("2^31 and 2^32 elements apart");
}

// The first segment ends with its page, and the second begins with one, in elements of any type.
Outcome gaps_unmapped(Context& context) {
  if (!context.device.is_cpu()) return not_applicable("arenas without memory are for a CPU");
  const int64_t whole = sysconf(_SC_PAGESIZE);
  int tried = 0;
  for (auto parameter : {at::kFloat, at::kBFloat16}) try {
      const Stepped stepped = step_apart(context, whole - count, 3 * whole, parameter);
      if (!stepped.failure.empty()) return failed(stepped.failure);
      ++tried;
    } catch (const RowAborted& refused) {
      if (refused.state != State::not_applicable) throw;
    }
  return tried ? ok(fmt::format("{} types", tried)) : not_applicable("supports() says no");
}

} // namespace fvlm::check
