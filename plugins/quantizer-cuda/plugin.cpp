// plugin.cpp: quantized weights of the schemes int8 and int4 on CUDA. Products of up to max_mma_tokens tokens, in
// bfloat16 on a Hopper max_tiled_tokens, dequantize in registers (odd widths and float32: up to max_skinny_tokens);
// larger ones dequantize the weight into the workspace and multiply with cuBLASLt.
#include "common/cublaslt.h"
#include "common/cuda_device.h"
#include "common/cuda_tensor_map.h"
#include "launches.h"

#include <climits>
#include <tuple>

namespace fvlm::plugins {
namespace {

using sdk::BFloat16, sdk::Failure, sdk::Half, sdk::Support, sdk::View;
using std::int64_t;

constexpr std::size_t cublas_workspace = std::size_t{4} << 20;

// A matrix of the query's type with contiguous rows.
template <class Tensor>
MatrixView matrix_of(Tensor* tensor, fvlm_dtype dtype, const char* name, int64_t rows, int64_t columns) {
  MatrixView found;
  sdk::dispatch<float, BFloat16, Half>(dtype, [&](auto element) {
    using Element = typename decltype(element)::type;
    const View<const Element, 2> view(tensor, name);
    if (view.size(0) != rows || view.size(1) != columns)
      throw Failure(FVLM_ERROR_ARGUMENT, "%s: expected shape [%lld, %lld] but got [%lld, %lld]", name,
                    static_cast<long long>(rows), static_cast<long long>(columns), static_cast<long long>(view.size(0)),
                    static_cast<long long>(view.size(1)));
    if (!view.rows_contiguous())
      throw Failure(FVLM_ERROR_UNSUPPORTED, "%s: its last dimension must be contiguous", name);
    found = {const_cast<Element*>(view.data()), view.stride(0)};
  });
  return found;
}

template <class Element>
Element* flat(const fvlm_tensor* tensor, const char* name, int64_t elements) {
  const View<const Element, 1> view(tensor, name);
  if (view.size(0) != elements || !view.contiguous())
    throw Failure(FVLM_ERROR_ARGUMENT, "%s: expected %lld contiguous elements", name, static_cast<long long>(elements));
  return const_cast<Element*>(view.data());
}

template <int width>
class CudaQuantizer : public sdk::Quantizer {
 public:
  static constexpr const char* scheme = width == 8 ? "int8" : "int4";
  static constexpr int bits = width;
  static constexpr std::uint32_t features = FVLM_QUANTIZED_RESIDUAL | FVLM_QUANTIZED_NORM | FVLM_QUANTIZED_SWIGLU;

  explicit CudaQuantizer(const fvlm_instance_config& config)
      : multiprocessors_(multiprocessor_count(config.device)), is_hopper_(is_hopper(config.device)) {}

  static Support supports(const Query& query) {
    if (Support no = sdk::check_device(query.device, 8, 0); no.score == 0) return no;
    return fits(query, is_hopper(query.device));
  }

  // Also checked by every call.
  static Support fits(const Query& query, bool on_hopper) {
    if (!sdk::is_one_of<float, BFloat16, Half>(query.dtype))
      return sdk::refuse("weights in %s not supported", sdk::name_of(query.dtype));
    if (query.rows < 0 || query.cols < 0 || query.tokens < 0) return sdk::refuse("a negative size");
    const PackedWeight shape = packed_shape(width, query.rows, query.cols);
    if (std::max({query.rows, query.cols, query.tokens}) > INT_MAX ||
        (shape.groups > 0 && query.rows > INT_MAX / shape.groups))
      return sdk::refuse("%lld x %lld weights and %lld tokens are not supported", static_cast<long long>(query.rows),
                         static_cast<long long>(query.cols), static_cast<long long>(query.tokens));
    const int64_t most = tokens_in_registers(query, shape, on_hopper);
    if (const uint32_t options = options_of(query)) {
      if ((options & ~features) || !mma_supports(query.dtype, shape) || query.tokens > most ||
          ((options & FVLM_QUANTIZED_SWIGLU) && (query.rows % 2 || (options & FVLM_QUANTIZED_RESIDUAL))))
        return sdk::refuse("no linear with options %u of these sizes", options);
    }
    return sdk::accept(200, "dequantizes in registers for up to %lld tokens", static_cast<long long>(most));
  }

  void requirements(const Query& query, sdk::Requirements& requirements) const {
    sdk::require(fits(query, is_hopper_));
    const PackedWeight shape = packed_shape(width, query.rows, query.cols);
    if (width == 8) {
      requirements.save(sdk::int8, {query.rows, query.cols});
      requirements.save(sdk::float32, {query.rows});
    } else {
      requirements.save(sdk::uint8, {query.rows, shape.row_bytes});
      requirements.save(sdk::float32, {query.rows, shape.groups});
    }
    sdk::Workspace space;
    if (query.tokens > 0) (void)take(space, query);
    requirements.forward_workspace = space.used();
  }

  void pack(const fvlm_call& call, const Query& query, const Pack& arguments) const {
    sdk::require(fits(query, is_hopper_));
    const MatrixView weight = matrix_of(arguments.weight, query.dtype, "weight", query.rows, query.cols);
    const fvlm_tensor* importance = importance_of(arguments);
    quantize(sdk::stream_of(call), query.dtype, packed_of(query, arguments.packed), weight,
             importance ? flat<const float>(importance, "importance", query.cols) : nullptr);
  }

  void unpack(const fvlm_call& call, const Query& query, const Unpack& arguments) const {
    sdk::require(fits(query, is_hopper_));
    dequantize(sdk::stream_of(call), query.dtype, packed_of(query, arguments.packed),
               matrix_of(arguments.weight, query.dtype, "weight", query.rows, query.cols));
  }

  void fake_quantize_forward(const fvlm_call& call, const Query& query, const FakeForward& arguments) const {
    sdk::require(fits(query, is_hopper_));
    fake_quantize(sdk::stream_of(call), query.dtype, packed_shape(width, query.rows, query.cols),
                  matrix_of(arguments.weight, query.dtype, "weight", query.rows, query.cols),
                  matrix_of(arguments.out, query.dtype, "out", query.rows, query.cols));
  }

  void fake_quantize_backward(const fvlm_call& call, const Query& query, const FakeBackward& arguments) const {
    sdk::require(fits(query, is_hopper_));
    plugins::fake_quantize_backward(sdk::stream_of(call), query.dtype, packed_shape(width, query.rows, query.cols),
                                    matrix_of(arguments.weight, query.dtype, "weight", query.rows, query.cols),
                                    matrix_of(arguments.d_out, query.dtype, "d_out", query.rows, query.cols),
                                    matrix_of(arguments.d_weight, query.dtype, "d_weight", query.rows, query.cols));
  }

  void linear(const fvlm_call& call, const Query& query, const Linear& arguments) const {
    sdk::require(fits(query, is_hopper_));
    const PackedWeight packed = packed_of(query, arguments.packed);
    const SkinnyLinear linear = operands(query, arguments);
    if (linear.tokens == 0 || query.rows == 0) return;
    if (is_hopper_ && streamed_takes(query.dtype, packed, linear, multiprocessors_))
      return linear_streamed(sdk::stream_of(call), packed, linear, multiprocessors_);
    if (is_hopper_ && tiled_takes(query.dtype, packed, linear))
      return linear_tiled(sdk::stream_of(call), packed, linear, multiprocessors_);
    if (mma_takes(query.dtype, packed, linear) && (options_of(query) || linear.tokens <= max_mma_tokens))
      return linear_mma(sdk::stream_of(call), query.dtype, packed, linear, multiprocessors_);
    if (options_of(query)) throw Failure(FVLM_ERROR_UNSUPPORTED, "operands must be aligned to 16 bytes");
    const auto& [x, y, tokens] = std::tie(linear.x, linear.y, linear.tokens);
    if (tokens <= max_skinny_tokens || query.cols == 0) {
      for (int64_t first = 0; first < tokens; first += max_skinny_tokens) // more than one part without columns only
        linear_skinny(sdk::stream_of(call), query.dtype, packed, row_of(x, query.dtype, first), linear.bias,
                      row_of(y, query.dtype, first), std::min(max_skinny_tokens, tokens - first));
      return;
    }
    multiply(call, query, packed, x, y, tokens, true);
    if (linear.bias) add_bias(sdk::stream_of(call), query.dtype, linear.bias, y, tokens, query.rows);
  }

  void linear_gradient(const fvlm_call& call, const Query& query, const LinearGradient& arguments) const {
    sdk::require(fits(query, is_hopper_));
    const PackedWeight packed = packed_of(query, arguments.packed);
    const int64_t tokens = tokens_of(arguments.d_y, query, "d_y");
    const MatrixView d_y = matrix_of(arguments.d_y, query.dtype, "d_y", tokens, query.rows),
                     d_x = matrix_of(arguments.d_x, query.dtype, "d_x", tokens, query.cols);
    if (tokens == 0 || query.cols == 0) return;
    if (query.rows == 0) {
      sdk::check_cuda(cudaMemset2DAsync(d_x.data, static_cast<std::size_t>(d_x.stride) * sdk::bytes_of(query.dtype), 0,
                                        static_cast<std::size_t>(query.cols) * sdk::bytes_of(query.dtype),
                                        static_cast<std::size_t>(tokens), sdk::stream_of(call)),
                      "cudaMemset2DAsync");
      return;
    }
    multiply(call, query, packed, d_y, d_x, tokens, false);
  }

 private:
  struct Scratch {
    sdk::Span<char> weight; // dequantized
    sdk::Span<char> cublas;
  };

  // Up to how many tokens a product dequantizes in registers.
  static int64_t tokens_in_registers(const Query& query, const PackedWeight& shape, bool on_hopper) {
    if (!mma_supports(query.dtype, shape)) return max_skinny_tokens;
    const bool is_gated = options_of(query) & FVLM_QUANTIZED_SWIGLU;
    return on_hopper && tiled_supports(query.dtype, shape, is_gated) ? max_tiled_tokens : max_mma_tokens;
  }

  // Rows of the dequantized weight begin at multiples of 16 bytes.
  static int64_t padded_cols(const Query& query) { return (query.cols + 7) / 8 * 8; }

  static Scratch take(sdk::Workspace& space, const Query& query) {
    return {space.take<char>(query.rows * padded_cols(query) * static_cast<int64_t>(sdk::bytes_of(query.dtype))),
            space.take<char>(static_cast<int64_t>(cublas_workspace))};
  }

  static int64_t tokens_of(const fvlm_tensor* tensor, const Query& query, const char* name) {
    if (!tensor || tensor->ndim != 2) throw Failure(FVLM_ERROR_ARGUMENT, "%s: expected a matrix", name);
    if (tensor->shape[0] > query.tokens)
      throw Failure(FVLM_ERROR_ARGUMENT, "%s has %lld tokens, but the query allows at most %lld", name,
                    static_cast<long long>(tensor->shape[0]), static_cast<long long>(query.tokens));
    return tensor->shape[0];
  }

  static SkinnyLinear operands(const Query& query, const Linear& arguments) {
    const uint32_t options = options_of(query);
    SkinnyLinear linear{};
    linear.tokens = tokens_of(arguments.x, query, "x");
    linear.is_gated = options & FVLM_QUANTIZED_SWIGLU;
    linear.epsilon = options ? query.epsilon : 0;
    linear.x = matrix_of(arguments.x, query.dtype, "x", linear.tokens, query.cols);
    linear.y = matrix_of(arguments.y, query.dtype, "y", linear.tokens, linear.is_gated ? query.rows / 2 : query.rows);
    if (options & FVLM_QUANTIZED_RESIDUAL)
      linear.residual = matrix_of(arguments.residual, query.dtype, "residual", linear.tokens, query.rows);
    sdk::dispatch<float, BFloat16, Half>(query.dtype, [&](auto element) {
      using Element = const typename decltype(element)::type;
      if (arguments.bias) linear.bias = flat<Element>(arguments.bias, "bias", query.rows);
      if (options & FVLM_QUANTIZED_NORM)
        linear.norm_weight = flat<Element>(arguments.norm_weight, "norm_weight", query.cols);
    });
    return linear;
  }

  static MatrixView row_of(const MatrixView& matrix, fvlm_dtype dtype, int64_t row) {
    return {static_cast<char*>(matrix.data) + row * matrix.stride * static_cast<int64_t>(sdk::bytes_of(dtype)),
            matrix.stride};
  }

  template <class Tensor>
  static PackedWeight packed_of(const Query& query, Tensor* const* tensors) {
    PackedWeight packed = packed_shape(width, query.rows, query.cols);
    const auto codes_of = [&](auto code) {
      using Code = decltype(code);
      const View<const Code, 2> codes(tensors[0], "codes");
      if (codes.size(0) != query.rows || codes.size(1) != packed.row_bytes || !codes.contiguous())
        throw Failure(FVLM_ERROR_ARGUMENT, "codes: expected contiguous [%lld, %lld]",
                      static_cast<long long>(query.rows), static_cast<long long>(packed.row_bytes));
      return reinterpret_cast<std::uint8_t*>(const_cast<Code*>(codes.data()));
    };
    if constexpr (width == 8) {
      packed.codes = codes_of(std::int8_t{});
      packed.scales = flat<float>(tensors[1], "scales", query.rows);
    } else {
      packed.codes = codes_of(std::uint8_t{});
      const View<const float, 2> scales(tensors[1], "scales");
      if (scales.size(0) != query.rows || scales.size(1) != packed.groups || !scales.contiguous())
        throw Failure(FVLM_ERROR_ARGUMENT, "scales: expected contiguous [%lld, %lld]",
                      static_cast<long long>(query.rows), static_cast<long long>(packed.groups));
      packed.scales = const_cast<float*>(scales.data());
    }
    return packed;
  }

  // y = x W^T if this is the forward, else x W, where W is dequantized first.
  void multiply(const fvlm_call& call, const Query& query, const PackedWeight& packed, const MatrixView& x,
                const MatrixView& y, int64_t tokens, bool forward) const {
    sdk::Workspace workspace(call);
    const Scratch scratch = take(workspace, query);
    const MatrixView weight{scratch.weight.data(), padded_cols(query)};
    dequantize(sdk::stream_of(call), query.dtype, packed, weight);
    const GemmShape shape{
        query.dtype, query.dtype, tokens, forward ? query.rows : query.cols, forward ? query.cols : query.rows,
        false,       forward};
    GemmDescriptor d(shape, x.stride, weight.stride, y.stride);
    const auto alignment = [&](const MatrixView& matrix) {
      const auto address = reinterpret_cast<std::uintptr_t>(matrix.data) |
                           static_cast<std::uintptr_t>(matrix.stride) * sdk::bytes_of(query.dtype);
      return static_cast<int64_t>(address % 16 == 0 ? 16 : sdk::bytes_of(query.dtype));
    };
    auto preference = gemm_preference(cublas_workspace, alignment(x), alignment(weight), alignment(y));
    cublasLtMatmulHeuristicResult_t found{};
    int results = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(library_.get(), &d.operation, &d.b, &d.a, &d.c, &d.c,
                                                                 &preference, 1, &found, &results);
    if (status != CUBLAS_STATUS_SUCCESS || results == 0)
      throw Failure(FVLM_ERROR_UNSUPPORTED, "cuBLASLt has no algorithm for %lld x %lld x %lld: %s",
                    static_cast<long long>(tokens), static_cast<long long>(shape.columns),
                    static_cast<long long>(shape.inner), cublasLtGetStatusString(status));
    const float one = 1, none = 0;
    check_cublas(cublasLtMatmul(library_.get(), &d.operation, &one, weight.data, &d.b, x.data, &d.a, &none, y.data,
                                &d.c, y.data, &d.c, &found.algo, scratch.cublas.data(), cublas_workspace,
                                sdk::stream_of(call)),
                 "cublasLtMatmul");
  }

  int multiprocessors_;
  bool is_hopper_;
  CublasLt library_;
};

} // namespace
} // namespace fvlm::plugins

FVLM_PLUGIN("quantizer-cuda", "1.0.0", fvlm::plugins::CudaQuantizer<8>, fvlm::plugins::CudaQuantizer<4>)
