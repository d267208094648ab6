// matmul.cpp: selection, timing and launch of cuBLASLt algorithms.
#include "matmul.h"

#include "timing.h"

#include <algorithm>
#include <cstdio>

namespace fvlm::plugins {
namespace {

using namespace fvlm::sdk;
using std::int64_t;
using Algorithm = MatmulAlgorithm;

constexpr int max_candidates = 8;             // cuBLASLt was never seen to return more
constexpr std::size_t max_counter_bytes = 64; // of workspace for a counter of tiles
constexpr int64_t max_alignment = 16;         // bytes: no algorithm requires more

struct Description : GemmDescriptor {
  cublasLtMatrixLayoutOpaque_t addend = c;

  Description(const MatmulShape& s, const MatmulOperands& operands)
      : GemmDescriptor(s, operands.a.row_stride, operands.b.row_stride, operands.c.row_stride) {
    if (const int64_t row = std::max(operands.addend.row_stride, s.columns); operands.addend.data)
      check_cublas(cublasLtMatrixLayoutSetAttribute(&addend, CUBLASLT_MATRIX_LAYOUT_LD, &row, sizeof row),
                   "cublasLtMatrixLayoutSetAttribute");
    if (s.dtype == e4m3) set_scales(operands);
    using Gelu = MatmulShape::Gelu;
    const bool keeps = s.has_pre_activation || s.gelu == Gelu::derivative;
    const std::uint32_t gelu = s.gelu == Gelu::none         ? 0
                               : s.gelu == Gelu::derivative ? CUBLASLT_EPILOGUE_DGELU
                               : keeps                      ? CUBLASLT_EPILOGUE_GELU_AUX
                                                            : CUBLASLT_EPILOGUE_GELU;
    const std::uint32_t epilogue = gelu | (s.adds_bias ? CUBLASLT_EPILOGUE_BIAS : 0);
    if (epilogue) set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    if (s.adds_bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
    if (!keeps) return;
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, operands.pre_activation.data);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, std::max(operands.pre_activation.row_stride, s.columns));
  }

 private:
  // Sums of a few products at a time have 14 bits until they are added in float32, and all of them with fast
  // accumulation, which is up to 1.3 times as fast on an H100: e4m3 itself has 4 bits.
  void set_scales(const MatmulOperands& operands) {
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, operands.b_scales);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, operands.a_scales);
    set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{1});
  }
};

// Largest powers of two, in bytes, that divide addresses and row strides.
struct Alignments {
  int64_t a, b, c;
};

int64_t power_of_two_in(int64_t bytes) {
  int64_t power = 1;
  while (power < max_alignment && bytes % (2 * power) == 0) power *= 2;
  return power;
}

int64_t alignment_of(const Matrix& matrix, fvlm_dtype dtype) {
  return std::min(power_of_two_in(static_cast<int64_t>(reinterpret_cast<std::uintptr_t>(matrix.data) % max_alignment)),
                  power_of_two_in(matrix.row_stride * static_cast<int64_t>(bytes_of(dtype))));
}

Alignments alignments_of(const MatmulShape& s, const MatmulOperands& operands) {
  const Matrix bias{operands.bias, 0};
  return {alignment_of(operands.a, s.dtype), alignment_of(operands.b, s.dtype),
          std::min({alignment_of(operands.c, s.result), alignment_of(bias, s.result),
                    alignment_of(operands.addend, s.result), alignment_of(operands.pre_activation, s.result)})};
}

// Contiguous matrices at aligned addresses, for querying the heuristics, which access no memory.
MatmulOperands contiguous_operands(const MatmulShape& s) {
  MatmulOperands operands;
  operands.a.row_stride = s.a_transposed ? s.rows : s.inner;
  operands.b.row_stride = s.b_transposed ? s.inner : s.columns;
  operands.c.row_stride = s.columns;
  if (s.adds_bias) operands.bias = reinterpret_cast<void*>(max_alignment); // has to be non-NULL
  operands.a_scales = operands.b_scales = reinterpret_cast<const float*>(max_alignment);
  if (s.gelu != MatmulShape::Gelu::none) operands.pre_activation = {reinterpret_cast<void*>(max_alignment), s.columns};
  return operands;
}

std::vector<Algorithm> query_heuristics(const CublasLt& library, const MatmulShape& s, const MatmulOperands& operands,
                                        const Alignments& alignments, std::size_t workspace) {
  Description d(s, operands);
  auto preference = gemm_preference(workspace, alignments.a, alignments.b, alignments.c);
  cublasLtMatmulHeuristicResult_t found[max_candidates];
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(library.get(), &d.operation, &d.b, &d.a, &d.c, &d.c,
                                                               &preference, max_candidates, found, &count);
  std::vector<Algorithm> algorithms;
  for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < count; ++i)
    if (found[i].state == CUBLAS_STATUS_SUCCESS) algorithms.push_back({found[i].algo, found[i].workspaceSize});
  return algorithms;
}

cublasStatus_t launch(const CublasLt& library, const fvlm_call& call, const MatmulShape& s,
                      const MatmulOperands& operands, const Algorithm& algorithm, Span<char> workspace) {
  Description d(s, operands);
  const void* added = operands.addend.data ? operands.addend.data : operands.c.data;
  const float one = 1, beta = operands.accumulate || operands.addend.data ? 1 : 0;
  const bool uses_workspace = algorithm.workspace > 0;
  return cublasLtMatmul(library.get(), &d.operation, &one, operands.b.data, &d.b, operands.a.data, &d.a, &beta, added,
                        &d.addend, operands.c.data, &d.c, &algorithm.algorithm,
                        uses_workspace ? workspace.data() : nullptr, uses_workspace ? workspace.size() : 0,
                        stream_of(call));
}

} // namespace

Matmul::Matmul(const CublasLt& library, const MatmulShape& shape, std::size_t workspace) : shape_(shape) {
  const MatmulOperands contiguous = contiguous_operands(shape);
  const auto suggested = query_heuristics(library, shape, contiguous, alignments_of(shape, contiguous), workspace);
  // With a few bytes of workspace blocks take tiles from a counter, which a launch of its own clears; without, tiles
  // are distributed beforehand.
  for (const Algorithm& each : suggested) {
    if (each.workspace <= max_counter_bytes) candidates_.push_back({each.algorithm, 0});
    if (candidates_.size() <= 1) chosen_ = first_ = candidates_.size(); // behind the first without a counter
    candidates_.push_back(each);
  }
  MatmulOperands misaligned = contiguous;
  for (Matrix* each : {&misaligned.a, &misaligned.b, &misaligned.c}) each->row_stride = each->row_stride / 2 * 2 + 1;
  if (misaligned.bias) misaligned.bias = static_cast<char*>(misaligned.bias) + bytes_of(shape.result);
  const int64_t element = static_cast<int64_t>(bytes_of(shape.dtype));
  const auto any = query_heuristics(library, shape, misaligned,
                                    {element, element, static_cast<int64_t>(bytes_of(shape.result))}, workspace);
  exists_ = !any.empty();
  if (exists_) unaligned_ = any.front();
}

void Matmul::measure(const CublasLt& library, const fvlm_call& call, const MatmulShape& shape,
                     const std::function<MatmulOperands(int repeat)>& operands, Span<char> workspace) {
  std::vector<Candidate> candidates;
  for (const Algorithm& candidate : candidates_)
    candidates.emplace_back([&, candidate](int repeat) {
      return launch(library, call, shape, operands(repeat), candidate, workspace) == CUBLAS_STATUS_SUCCESS;
    });
  if (candidates.empty()) return;
  const std::vector<double> seconds = time_interleaved(stream_of(call), candidates);
  chosen_ = pick_fastest(seconds);
  (void)std::snprintf(report_, sizeof report_, "candidate %zu of %zu, %.1f us, the first %.1f us", chosen_ + 1,
                      candidates_.size(), seconds[chosen_] * 1e6, seconds[first_] * 1e6);
}

MatmulChoice Matmul::choice() const {
  if (candidates_.empty()) return {};
  return {candidates_[chosen_], 1};
}

void Matmul::choose(const CublasLt& library, const MatmulChoice& choice, std::size_t workspace) {
  if (choice.exists == 0 || candidates_.empty()) return;
  Description d(shape_, contiguous_operands(shape_));
  cublasLtMatmulHeuristicResult_t found{};
  if (cublasLtMatmulAlgoCheck(library.get(), &d.operation, &d.b, &d.a, &d.c, &d.c, &choice.algorithm.algorithm,
                              &found) != CUBLAS_STATUS_SUCCESS ||
      found.workspaceSize > workspace)
    return;
  const bool distributes_tiles = choice.algorithm.workspace == 0 && found.workspaceSize <= max_counter_bytes;
  chosen_ = candidates_.size();
  candidates_.push_back({choice.algorithm.algorithm, distributes_tiles ? 0 : found.workspaceSize});
}

bool Matmul::takes(const MatmulOperands& operands) const {
  const Alignments needed = alignments_of(shape_, contiguous_operands(shape_)), given = alignments_of(shape_, operands);
  return given.a >= needed.a && given.b >= needed.b && given.c >= needed.c && !candidates_.empty();
}

void Matmul::run(const CublasLt& library, const fvlm_call& call, const MatmulOperands& operands,
                 Span<char> workspace) const {
  const bool contiguous = takes(operands);
  if (!contiguous && !exists_)
    throw Failure(FVLM_ERROR_UNSUPPORTED, "cuBLASLt has no algorithm for operands of this alignment");
  const Algorithm& algorithm = contiguous ? candidates_[chosen_] : unaligned_;
  check_cublas(launch(library, call, shape_, operands, algorithm, workspace), "cublasLtMatmul");
}

} // namespace fvlm::plugins
