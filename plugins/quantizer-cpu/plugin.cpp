// plugin.cpp: quantized weights of the schemes int8 and int4, whose activations stay in floating point, and of w8a8.
#include "common/tasks.h"
#include "int8_products.h"
#include "products.h"
#include "row_loops.h"

#include <fvlm/fvlm.hpp>

#include <algorithm>

namespace fvlm::plugins {
namespace {

using sdk::BFloat16, sdk::Failure, sdk::Support, sdk::View;

constexpr std::int64_t rows_per_task = 16;

template <class Element, int rank, class Tensor>
View<Element, rank> rows_of(Tensor* tensor, const char* name, std::int64_t rows, std::int64_t columns) {
  const View<Element, rank> view(tensor, name);
  if (view.size(0) != rows || (rank == 2 && view.size(rank - 1) != columns)) {
    throw Failure(FVLM_ERROR_ARGUMENT, "%s: expected shape [%lld, %lld] but got [%lld, %lld]", name,
                  static_cast<long long>(rows), static_cast<long long>(columns), static_cast<long long>(view.size(0)),
                  static_cast<long long>(view.size(rank - 1)));
  }
  if (!view.rows_contiguous()) throw Failure(FVLM_ERROR_UNSUPPORTED, "%s: its last dimension must be contiguous", name);
  return view;
}

template <class Scheme>
class CpuQuantizer : public sdk::Quantizer {
 public:
  static constexpr const char* scheme = Scheme::name;
  static constexpr int bits = Scheme::bits;

  explicit CpuQuantizer(const fvlm_instance_config& config)
      : host_(config.host), level_(cpu_level()), kernels_(quantized_kernels(level_)), int8_(int8_kernel(level_)) {}

  static Support supports(const Query& query) {
    if (query.device.type != FVLM_CPU) return sdk::refuse("runs on the CPU only");
    if (!sdk::is_one_of<float, BFloat16>(query.dtype)) {
      return sdk::refuse("weights in %s not supported", sdk::name_of(query.dtype));
    }
    if (query.rows < 0 || query.cols < 0 || query.tokens < 0) return sdk::refuse("a negative size");
    return sdk::accept(100, "converts blocks of weights to float32, %s", name_of(cpu_level()));
  }

  void requirements(const Query& query, sdk::Requirements& requirements) const {
    sdk::require(supports(query));
    requirements.save(sdk::dtype_of<Stored>, {query.rows, Scheme::stored(query.cols)});
    if (is_int8) {
      requirements.save(sdk::float32, {query.rows});
    } else {
      requirements.save(sdk::float32, {query.rows, Scheme::groups(query.cols)});
    }
    sdk::Workspace space;
    (void)take(space, query, query.tokens);
    requirements.forward_workspace = space.used();
  }

  void pack(const fvlm_call& call, const Query& query, const Pack& arguments) {
    sdk::require(supports(query));
    const Packed<Stored, float> packed(query, arguments.packed);
    const float* importance = nullptr;
    if (const fvlm_tensor* given = importance_of(arguments))
      importance = rows_of<const float, 1>(given, "importance", query.cols, query.cols).data();
    for_rows(call, query, [&](auto element, std::int64_t begin, std::int64_t end) {
      using Element = typename decltype(element)::type;
      const auto weight = rows_of<const Element, 2>(arguments.weight, "weight", query.rows, query.cols);
      const auto kernel = for_level<QuantizeRow<Scheme, Element>>(level_);
      for (std::int64_t r = begin; r < end; ++r) {
        kernel({weight.row(r), importance, query.cols, packed.codes_of(r), packed.scales_of(r)});
      }
    });
  }

  void unpack(const fvlm_call& call, const Query& query, const Unpack& arguments) {
    sdk::require(supports(query));
    const Packed<const Stored, const float> packed(query, arguments.packed);
    for_rows(call, query, [&](auto element, std::int64_t begin, std::int64_t end) {
      using Element = typename decltype(element)::type;
      const auto weight = rows_of<Element, 2>(arguments.weight, "weight", query.rows, query.cols);
      const auto kernel = for_level<DequantizeRow<Scheme, Element>>(level_);
      for (std::int64_t r = begin; r < end; ++r) {
        kernel({packed.codes_of(r), query.cols, packed.scales_of(r), weight.row(r)});
      }
    });
  }

  void fake_quantize_forward(const fvlm_call& call, const Query& query, const FakeForward& arguments) {
    sdk::require(supports(query));
    for_rows(call, query, [&](auto element, std::int64_t begin, std::int64_t end) {
      using Element = typename decltype(element)::type;
      const auto weight = rows_of<const Element, 2>(arguments.weight, "weight", query.rows, query.cols);
      const auto out = rows_of<Element, 2>(arguments.out, "out", query.rows, query.cols);
      const auto kernel = for_level<FakeQuantizeRow<Scheme, Element>>(level_);
      for (std::int64_t r = begin; r < end; ++r) kernel({weight.row(r), query.cols, out.row(r)});
    });
  }

  void fake_quantize_backward(const fvlm_call& call, const Query& query, const FakeBackward& arguments) {
    sdk::require(supports(query));
    for_rows(call, query, [&](auto element, std::int64_t begin, std::int64_t end) {
      using Element = typename decltype(element)::type;
      const auto weight = rows_of<const Element, 2>(arguments.weight, "weight", query.rows, query.cols);
      const auto d_out = rows_of<const Element, 2>(arguments.d_out, "d_out", query.rows, query.cols);
      const auto d_weight = rows_of<Element, 2>(arguments.d_weight, "d_weight", query.rows, query.cols);
      const auto kernel = for_level<FakeQuantizeBackwardRow<Scheme, Element>>(level_);
      for (std::int64_t r = begin; r < end; ++r) kernel({weight.row(r), d_out.row(r), query.cols, d_weight.row(r)});
    });
  }

  void linear(const fvlm_call& call, const Query& query, const Linear& arguments) {
    sdk::require(supports(query));
    const Packed<const Stored, const float> packed(query, arguments.packed);
    sdk::dispatch<float, BFloat16>(query.dtype, [&](auto element) {
      using Element = typename decltype(element)::type;
      const void* bias = nullptr;
      if (arguments.bias) {
        bias = rows_of<const Element, 1>(arguments.bias, "bias", query.rows, query.rows).data();
      }
      if (Scheme::quantizes_activations) return multiply_codes<Element>(call, query, packed, arguments, bias);
      multiply<Element>(call, query, packed, arguments.x, "x", query.cols, arguments.y, "y", query.rows, bias, true);
    });
  }

  void linear_gradient(const fvlm_call& call, const Query& query, const LinearGradient& arguments) {
    sdk::require(supports(query));
    const Packed<const Stored, const float> packed(query, arguments.packed);
    sdk::dispatch<float, BFloat16>(query.dtype, [&](auto element) {
      using Element = typename decltype(element)::type;
      multiply<Element>(call, query, packed, arguments.d_y, "d_y", query.rows, arguments.d_x, "d_x", query.cols,
                        nullptr, false);
    });
  }

 private:
  using Stored = typename Scheme::Stored;
  static constexpr bool is_int8 = Scheme::bits == 8;

  template <class Code, class Scale>
  struct Packed {
    Code* codes;
    Scale* scales;
    std::int64_t stored, groups; // of a row

    template <class Tensor>
    Packed(const Query& query, Tensor* const* packed)
        : stored(Scheme::stored(query.cols)), groups(Scheme::groups(query.cols)) {
      const auto c = rows_of<Code, 2>(packed[0], "codes", query.rows, stored);
      const auto s = rows_of < Scale,
                 is_int8 ? 1 : 2 > (packed[1], "scales", query.rows, is_int8 ? query.rows : groups);
      if (!c.contiguous() || !s.contiguous())
        throw Failure(FVLM_ERROR_UNSUPPORTED, "packed tensors must be contiguous");
      codes = c.data();
      scales = s.data();
    }
    Code* codes_of(std::int64_t row) const { return codes + row * stored; }
    Scale* scales_of(std::int64_t row) const { return scales + row * groups; }
  };

  struct Scratch {
    sdk::Span<float> x; // converted to float32, if it is bfloat16
    sdk::Span<float> blocks;
    // Of w8a8: x in codes, the scale and the sum of each row, and sums of products.
    sdk::Span<std::int8_t> codes;
    sdk::Span<float> scales;
    sdk::Span<std::int32_t> code_sums, sums;
  };

  static auto int8_kernel(CpuLevel level) -> void (*)(const Int8Task&) {
    const Int8Kernels& kernels = int8_kernels(level);
#if defined(__x86_64__)
    if (kernels.vnni && __builtin_cpu_supports("avx512vnni")) return kernels.vnni;
#endif
    return kernels.plain;
  }

  static std::int64_t padded(std::int64_t cols) {
    return (cols + 63) / 64 * 64;
  }

  Scratch take(sdk::Workspace& space, const Query& query, std::int64_t tokens) const {
    if (tokens == 0) return {};
    const bool is_bfloat16 = query.dtype == sdk::bfloat16;
    return {space.take<float>(is_bfloat16 ? tokens * std::max(query.rows, query.cols) : 0),
            space.take<float>(workers(host_) * scratch_floats),
            space.take<std::int8_t>(Scheme::quantizes_activations ? tokens * padded(query.cols) : 0),
            space.take<float>(Scheme::quantizes_activations ? tokens : 0),
            space.take<std::int32_t>(Scheme::quantizes_activations ? tokens : 0),
            space.take<std::int32_t>(Scheme::quantizes_activations ? tokens * query.rows : 0)};
  }

  template <class Body>
  static void for_rows(const fvlm_call& call, const Query& query, const Body& body) {
    sdk::dispatch<float, BFloat16>(query.dtype, [&](auto element) {
      sdk::parallel_for(call.host, query.rows, rows_per_task,
                        [&](std::int64_t begin, std::int64_t end) { body(element, begin, end); });
    });
  }

  // y [tokens, outputs] = x [tokens, inputs] times the weight, transposed if this is the forward.
  template <class Element>
  void multiply(const fvlm_call& call, const Query& query, const Packed<const Stored, const float>& packed,
                const fvlm_tensor* x_tensor, const char* x_name, std::int64_t inputs, fvlm_tensor* y_tensor,
                const char* y_name, std::int64_t outputs, const void* bias, bool forward) const {
    const View<const Element, 2> unchecked(x_tensor, x_name);
    const std::int64_t tokens = unchecked.size(0);
    if (tokens > query.tokens) {
      throw Failure(FVLM_ERROR_ARGUMENT, "%s has %lld tokens, but the query allows at most %lld", x_name,
                    static_cast<long long>(tokens), static_cast<long long>(query.tokens));
    }
    const auto x = rows_of<const Element, 2>(x_tensor, x_name, tokens, inputs);
    const auto y = rows_of<Element, 2>(y_tensor, y_name, tokens, outputs);
    if (tokens == 0 || outputs == 0) return;
    sdk::Workspace workspace(call);
    const Scratch scratch = take(workspace, query, tokens);
    LinearTask common{};
    common.weight = {packed.codes,
                     packed.scales,
                     query.rows,
                     query.cols,
                     packed.stored * static_cast<std::int64_t>(sizeof(Stored)),
                     Scheme::group(query.cols),
                     packed.groups};
    common.bias = bias;
    common.y_stride = y.stride(0);
    common.bfloat16 = query.dtype == sdk::bfloat16;
    if constexpr (std::is_same_v<Element, float>) {
      common.x = x.data();
      common.x_stride = x.stride(0);
    } else {
      sdk::parallel_for(call.host, tokens, 1 + 16384 / (inputs + 1), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t t = begin; t < end; ++t) {
          kernels_.to_float32(reinterpret_cast<const std::uint16_t*>(x.row(t)), inputs, scratch.x.data() + t * inputs);
        }
      });
      common.x = scratch.x.data();
      common.x_stride = inputs;
    }
    const SchemeKernels& kernels = is_int8 ? kernels_.int8 : kernels_.int4;
    const bool skinny = forward && tokens <= max_skinny_tokens;
    const std::int64_t blocks = (outputs + block_columns - 1) / block_columns;
    const std::int64_t parts = (tokens + block_tokens - 1) / block_tokens;
    const std::int64_t tokens_of_part = ((tokens + parts - 1) / parts + 5) / 6 * 6; // whole tiles of 6 rows
    run_tasks(call.host, blocks * parts, [&](int worker, std::int64_t index) {
      LinearTask task = common;
      const std::int64_t first = index / blocks * tokens_of_part;
      task.begin = index % blocks * block_columns;
      task.end = std::min(task.begin + block_columns, outputs);
      task.tokens = std::min(tokens_of_part, tokens - first);
      task.x += first * task.x_stride;
      task.y = y.row(first);
      task.scratch = scratch.blocks.data() + worker * scratch_floats;
      (skinny ? kernels.linear_skinny : forward ? kernels.linear : kernels.linear_gradient)(task);
    });
  }

  // y [tokens, rows] of w8a8: all rows of x in codes first, then blocks of output features for a few tokens at a time.
  template <class Element>
  void multiply_codes(const fvlm_call& call, const Query& query, const Packed<const Stored, const float>& packed,
                      const Linear& arguments, const void* bias) const {
    const std::int64_t tokens = View<const Element, 2>(arguments.x, "x").size(0);
    if (tokens > query.tokens)
      throw Failure(FVLM_ERROR_ARGUMENT, "x has %lld tokens, but the query allows at most %lld",
                    static_cast<long long>(tokens), static_cast<long long>(query.tokens));
    const auto x = rows_of<const Element, 2>(arguments.x, "x", tokens, query.cols);
    const auto y = rows_of<Element, 2>(arguments.y, "y", tokens, query.rows);
    if (tokens == 0 || query.rows == 0) return;
    sdk::Workspace workspace(call);
    const Scratch scratch = take(workspace, query, tokens);
    const std::int64_t stride = padded(query.cols);
    const auto quantize = for_level<QuantizeActivations<Element>>(level_);
    sdk::parallel_for(call.host, tokens, 1 + 16384 / (query.cols + 1), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t)
        quantize({x.row(t), query.cols, stride, scratch.codes.data() + t * stride, scratch.scales.data() + t,
                  scratch.code_sums.data() + t});
    });
    const std::int64_t blocks = (query.rows + block_columns - 1) / block_columns;
    sdk::parallel_for(call.host, blocks, 1, [&](std::int64_t first, std::int64_t last) {
      const std::int64_t begin = first * block_columns, end = std::min(last * block_columns, query.rows);
      for (std::int64_t t = 0; t < tokens; t += int8_tokens)
        int8_({reinterpret_cast<const std::int8_t*>(packed.codes), scratch.codes.data() + t * stride, query.cols,
               stride, std::min(int8_tokens, tokens - t), begin, end, scratch.code_sums.data() + t,
               scratch.sums.data() + t * query.rows, query.rows});
      for (std::int64_t t = 0; t < tokens; ++t)
        for (std::int64_t r = begin; r < end; ++r) {
          const float value =
              static_cast<float>(scratch.sums.data()[t * query.rows + r]) * scratch.scales.data()[t] * packed.scales[r];
          y.row(t)[r] = Element(bias ? value + static_cast<float>(static_cast<const Element*>(bias)[r]) : value);
        }
    });
  }

  const fvlm_host* host_;
  CpuLevel level_;
  const QuantizedKernels& kernels_;
  void (*int8_)(const Int8Task&);
};

} // namespace
} // namespace fvlm::plugins

FVLM_PLUGIN("quantizer-cpu", "1.2.0", fvlm::plugins::CpuQuantizer<fvlm::plugins::Int8Scheme>,
            fvlm::plugins::CpuQuantizer<fvlm::plugins::Int4Scheme>,
            fvlm::plugins::CpuQuantizer<fvlm::plugins::W8A8Scheme>)
