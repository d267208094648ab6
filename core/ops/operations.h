// The operations that a model's forward pass is made of. Each selects a plugin when it meets a problem (a "query":
// shapes, types, options) for the first time, prepares it once, and records a backward step on the tape. Activations
// are [rows, width], where a row is a token of a pack.
//
// One class, by subject: operations.cpp (selection and caches), operations_linear.cpp, operations_adapter.cpp,
// operations_kernels.cpp (norms and elementwise operations), operations_attention.cpp, operations_recurrence.cpp,
// operations_loss.cpp. What only moves rows is in ops/rows.h.
#pragma once
#include "device/runtime.h"
#include "ops/attention.h"
#include "ops/bidirectional_attention.h"
#include "ops/kernels.h"
#include "ops/loss.h"
#include "ops/parameter.h"
#include "ops/quantizer.h"
#include "ops/recurrence.h"
#include "ops/ring_attention.h"
#include "ops/shared_weight_gradient.h"
#include "ops/tape.h"
#include "ops/timing_cache.h"
#include "plugin/selection.h"

#include <functional>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <typeindex>
#include <variant>

namespace fvlm::ops {

// The heads in columns [column, column + count * head_dim) of a value.
struct Heads {
  Value value;
  int64_t column, count;
};

// The segments of a packed buffer, within which rows attend to each other: see fvlm/attention.h. Sizes are capacities,
// which are known before the content is.
struct Segments {
  at::Tensor cu_seqlens;        // int32 [segments + 1]
  at::Tensor positions;         // int32 [rows], or [axes, rows] where a row has one on each axis of Rotary::axes;
                                // undefined without rotary embedding
  int64_t max_length = 0;       // upper bound of a segment's rows
  bool uniform_lengths = false; // the leading segments have `max_length` rows each and fill the buffer, the
                                // remaining ones are empty
  at::Tensor ring = {};         // where the ranks of a context have a part of the rows each: see RingBounds
  // int32 [rows]: under a causal mask, the last row that each attends to, its own or one behind it in the segment;
  // undefined: its own.
  at::Tensor last = {};
  // int32 [rows]: the first row that each attends to although it is outside of the window, its own or one before it;
  // undefined: its own.
  at::Tensor first = {};
  BidirectionalBlocks blocks = {}; // the same as `last`, for plugins
};

struct Rotary {
  int64_t dimensions = 0; // the leading ones of each head; 0: no rotary embedding
  double theta = 10000;
  at::Tensor frequencies = {}; // float64 [dimensions / 2], radians per position in place of theta's; may be undefined
  bool reversed = false;       // rotates by the negative angle
  // float64 [axes, dimensions / 2], the frequencies for rows that have a position on each of several axes, as M-RoPE
  // has them: each pair of dimensions is rotated by the position on one axis, and has the frequency 0 on all others.
  at::Tensor axes = {};

  // Whether theta says it all of rows with these positions, as plugins of the kind attention expect it.
  bool is_plain(const at::Tensor& positions) const {
    return !frequencies.defined() && !reversed && !(positions.defined() && positions.dim() > 1);
  }
};

struct AttentionShape {
  int64_t head_dim;
  bool causal = false;
  Rotary rotary = {};
  double score_factor = 1; // of the scores, besides 1 / sqrt(head_dim)
  double softcap = 0;      // scores s become softcap * tanh(s / softcap), with `causal` alone; 0: they stay as they are
  // With `causal`, of rows that attend to rows of the same segments: to the last `window` ones alone, their own among
  // them. 0: to all before them.
  int64_t window = 0;
};

// The exact one, x sigmoid(1.702 x), and the approximation with tanh: "gelu", "quick_gelu" and "gelu_pytorch_tanh" of
// Hugging Face configs.
enum class Gelu { exact, quick, tanh };

// The bit of a kernels query that names the form.
constexpr uint32_t form_option(Gelu form) {
  return option_if(FVLM_QUICK_GELU, form == Gelu::quick) | option_if(FVLM_GELU_TANH, form == Gelu::tanh);
}

struct OperationsOptions {
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;          // of activations and parameters
  at::ScalarType gradient_dtype = at::kFloat; // of parameters' gradients: dtype or float32
  bool deterministic = false;
  bool fp8 = false; // linears of weights that allow it are computed with FVLM_WITH_FP8
  BackendPreference attention, loss, kernels, quantizer;
  std::map<std::string, BackendPreference> operations; // "rmsnorm" -> its own preference, which replaces `kernels`
  ContextGroup context;                                // the ranks that share a sequence
};

class Operations {
 public:
  Operations(Registry& registry, OperationsOptions options);
  const OperationsOptions& options() const { return options_; }
  at::TensorOptions tensor_options() const { return at::TensorOptions(options_.device).dtype(options_.dtype); }

  // Here and below `into` is the memory for the result; undefined: new memory.

  // x weight^T + bias, with OperationsOptions::fp8 by the first of these two alone. A quantized weight is multiplied by
  // its scheme's quantizer, and what the adapters of a weight add is added, here and in the two below. In a pass that
  // shares the weight's gradient with another one, x should lie in pass.input().
  Value linear(Tape& tape, const Value& x, const Weight& weight, const Weight& bias = {},
               const SharedGradientPass& pass = {});
  struct Layer {
    Weight weight, bias;
  };
  // Kahan compensation of a residual stream in 16-bit types, for the last of every `step` rows.
  struct Compensation {
    int64_t step;
    at::Tensor value; // in: what rounding took from the residual (undefined: nothing); out: from the new sum
  };
  // linear(x) + residual, where there is a residual.
  Value linear(Tape& tape, const Value& x, const Layer& layer, const Value& residual,
               Compensation* compensation = nullptr);
  // Memory for the input of this weight's linear, in which one product computes the adapters' part, too (JoinedWeight);
  // undefined: any memory will do.
  static at::Tensor input_memory(const Weight& weight, int64_t rows);
  // linear(rmsnorm(x)); `gated`: silu(gate) * up of that, where the layer's rows are those of gate, then those of up.
  // In a pass without a tape it is one call where the linear's plugin takes all of it.
  Value linear_of_norm(Tape& tape, const Value& x, const Weight& norm_weight, double epsilon, const Layer& layer,
                       bool gated = false);
  // down(gelu(up(x))) + residual, where there is a residual. GELU is part of the linears.
  Value gelu_mlp(Tape& tape, const Value& x, const Layer& up, const Layer& down, const Value& residual = {},
                 Compensation* compensation = nullptr, Gelu form = Gelu::exact);

  // The matrix with columns of zeros appended, so that its rows are a multiple of 16 bytes, as a GPU's matrix products
  // require. The linear's input needs the same number of columns. The gradient reaches `weight` when the backward pass
  // arrives here.
  Weight padded(Tape& tape, const Weight& weight) { return padded(tape, weight, padded(weight.value().size(1))); }
  Weight padded(Tape& tape, const Weight& weight, int64_t columns);
  int64_t padded(int64_t columns) const;

  // Folds LayerScale into the linear before it: weight' = scale * weight, bias' = scale * bias, row by row. The
  // gradients reach the three parameters when the backward pass arrives here.
  struct LayerWithScale {
    Layer layer;
    Weight scale;
  };
  std::vector<Layer> fold_scale(Tape& tape, std::span<const LayerWithScale> layers);

  // y = norm(sum), sum = x + residual; without a residual, sum is x itself.
  struct NormOutput {
    Value y, sum;
  };
  // An undefined weight of rmsnorm stands for ones.
  // compensation, if not null: in 16-bit types, what rounding took from the residual (undefined: nothing), and after
  // the call what it took from the sum.
  NormOutput rmsnorm(Tape& tape, const Value& x, const Value& residual, const Weight& weight, double epsilon,
                     const at::Tensor& into = {}, at::Tensor* compensation = nullptr);
  NormOutput layernorm(Tape& tape, const Value& x, const Value& residual, const Weight& weight, const Weight& bias,
                       double epsilon, at::Tensor* compensation = nullptr);
  Value layernorm(Tape& tape, const Value& x, const Weight& weight, const Weight& bias, double epsilon);
  // The heads in some columns of a value, each normalized by its own root mean square: [rows, count * head_dim].
  // `weight` [head_dim] is shared by the heads. gate: as many heads, by whose silu they are multiplied; or nothing.
  Value rmsnorm_heads(Tape& tape, const Heads& heads, int64_t head_dim, const Weight& weight, double epsilon,
                      const Heads& gate = {});

  // A view of some columns of x.
  Value slice_columns(Tape& tape, const Value& x, int64_t first, int64_t count);

  // down(swiglu(up(x))), where the rows of up are those of gate, then those of up. SwiGLU is part of the linears where
  // their plugin has it so. `into`: memory for SwiGLU's result, or undefined.
  Value swiglu_mlp(Tape& tape, Value x, const Layer& up, const Layer& down, const SharedGradientPass& pass,
                   const at::Tensor& into = {});
  // silu(gate) * up, where gate_up holds the columns of gate, then those of up.
  Value swiglu(Tape& tape, const Value& gate_up, const at::Tensor& into = {});
  // gelu(gate) * up, with GELU's approximation with tanh; the first as swiglu().
  Value geglu(Tape& tape, const Value& gate_up);
  Value geglu(Tape& tape, const Value& gate, const Value& up);
  // down(swiglu(gate_up)) + residual, where there is a residual; computed with padded() weights and as many columns of
  // SwiGLU's result where the rows of `down` are no multiple of 16 bytes. `columns`: how many; 0: as padded() says.
  Value linear_of_swiglu(Tape& tape, const Value& gate_up, const Layer& down, const Value& residual = {},
                         int64_t columns = 0);
  Value gelu(Tape& tape, const Value& x, Gelu form);
  // residual + scale * x
  Value layerscale(Tape& tape, const Value& x, const Weight& scale, const Value& residual);

  // Applies rotary embedding to q and k, inside the plugin where it can; their memory may hold rotated values
  // afterwards. `shared_kv`: k and v of this attention as other attentions read them. If the plugin can, this
  // attention's backward also adds the contribution of one of those to d_k and d_v (deferred queries). Segments with a
  // `ring` are those of q, k and v alike; all ranks of the context attend at the same time. Plugins know no
  // rows that attend to those behind them and no softcap: where a segment has such rows, or scores have a bound, ATen
  // computes it.
  Value attention(Tape& tape, Heads q, Heads k, Heads v, const Segments& of_q, const Segments& of_kv,
                  const AttentionShape& shape, const at::Tensor& into = {}, const Value& shared_kv = {});

  // Attention of rows that continue sequences whose keys are in pages, without a gradient. q: [rows, heads_q *
  // head_dim], maybe columns of a wider tensor. q and the keys in the pages are rotated already: of the shape only
  // head_dim and score_factor count.
  at::Tensor paged_attention(const at::Tensor& q, int64_t heads_q, const PagedKeys& keys, const AttentionShape& shape);

  // RMSNorm of the heads of q and k before the rotary embedding. Undefined weights stand for ones.
  struct HeadNorms {
    Weight q, k;
    double epsilon;
  };
  // Attention of rows that are each the last of another sequence: normalizes and rotates q and k, writes k and v to
  // their pages, and attends. q, k and v are adjacent columns of qkv; where each row's key goes is `places`, int64
  // [2, rows] of pages and rows in them, and its position is its length less one. One call where the attention's plugin
  // can append, and where no row attends to what another one writes (`independent`).
  at::Tensor append_and_attend(const Value& qkv, int64_t heads_q, const PagedKeys& keys, const at::Tensor& positions,
                               const at::Tensor& places, bool independent, const AttentionShape& shape,
                               const HeadNorms* norms = nullptr);

  // Rotary embedding of q and k, in place. They are adjacent columns of one value, or each the leading columns of its
  // own. v changes only where it shares a value with k.
  void rotate(Tape& tape, Heads& q, Heads& k, Heads& v, const at::Tensor& positions_q, const at::Tensor& positions_kv,
              int64_t head_dim, const Rotary& rotary);
  // Rotary embedding of the first `heads` heads of each row, in place.
  Value rotate(Tape& tape, const Value& x, int64_t heads, int64_t head_dim, const Rotary& rotary,
               const at::Tensor& positions);

  // silu of a convolution of the leading `width` columns of x, within segments.
  Value silu_convolution(Tape& tape, const Value& x, int64_t width, const ConvolutionTaps& taps,
                         const Segments& segments);
  // `rows`: q, k and v of each row side by side; `gates`: b and a of each head. Gives [rows, value_heads * value_dim].
  Value gated_delta_rule(Tape& tape, const Value& rows, const Value& gates, const DeltaRule& rule,
                         const Segments& segments);
  // Both for sequences that go on, without a gradient. Their states are read and replaced: [slots, taps - 1, width],
  // and [slots, value_heads, key_dim, value_dim] in float32 or wider.
  at::Tensor silu_convolution(const at::Tensor& x, int64_t width, const ConvolutionTaps& taps,
                              const CarriedSequences& sequences, const at::Tensor& states);
  at::Tensor gated_delta_rule(const at::Tensor& rows, const at::Tensor& gates, const DeltaRule& rule,
                              const CarriedSequences& sequences, const at::Tensor& states);

  // The weight's numbers: its value, or those of a quantized one, dequantized into memory of their own.
  at::Tensor numbers(const Weight& weight);

  // A mixture of experts of few rows by a plugin, without a gradient; null: none has it for this many. `options`:
  // FVLM_WITH_BIAS, those of the router and those of quantized weights.
  struct ExpertSizes {
    int64_t rows, width, inner, experts, chosen;
  };
  const FewRowsExperts* few_rows_experts(const ExpertSizes& sizes, uint32_t options, double epsilon, double scale);

  // The cross-entropy of softmax(hidden head^T), one loss a row. Targets are int64; rows with a negative one have
  // loss 0. softcap: bound of the logits, see fvlm/loss.h; 0: none.
  Value cross_entropy(Tape& tape, const Value& hidden, const Weight& head, const at::Tensor& targets,
                      double softcap = 0);
  // The same where the gradient of each loss (`weights`) is known in advance: forward and backward are fused, and the
  // tape's backward() only passes the result on. Returns the losses.
  at::Tensor weighted_cross_entropy(Tape& tape, const Value& hidden, const Weight& head, const at::Tensor& targets,
                                    const at::Tensor& weights, double softcap = 0);

  // Calls `observe` before each linear of a forward-only pass, with the weight and the input; empty: nothing. Meanwhile
  // linears are computed one by one, and encoders fold no LayerScale into them.
  void observe_linears(std::function<void(const Weight& weight, const at::Tensor& x)> observe) {
    observe_linear_ = std::move(observe);
  }
  bool observes_linears() const { return observe_linear_ != nullptr; }

  // Whether a plugin did without OperationsOptions::fp8, so that linears were computed in the other precision.
  bool did_without_fp8() const { return did_without_fp8_; }

  // Excludes a plugin that refused a call although it had claimed to support the problem: the next preference replaces
  // it for this problem. A tape that was begun with it has to be discarded. False: the call was not made here. [setup]
  bool drop(const UnsupportedCall& refused);

  // Every selection so far, one for each problem, with refusals and measured times.
  const std::vector<SelectionReport>& choices() const { return choices_; }
  // The problem of each of them.
  using Query = std::variant<fvlm_attention_query, fvlm_paged_attention_query, fvlm_loss_query, fvlm_kernels_query>;
  const std::vector<Query>& queries() const { return queries_; }

 private:
  using KernelKey = std::tuple<int32_t, uint32_t, int64_t, int64_t, int64_t, int64_t, int32_t, int32_t, int32_t, float,
                               float, uint8_t, int64_t, int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, float>;
  using AttentionKey = std::tuple<int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, int64_t, int64_t,
                                  int64_t, float, float, int32_t, int32_t, int32_t, int32_t, int32_t, int32_t>;
  using PagedAttentionKey = std::tuple<int32_t, int32_t, int32_t, int32_t, int64_t, int64_t, int64_t, int64_t, float,
                                       int32_t, int32_t, int32_t, int32_t, int32_t, float, float, int32_t>;
  using LossKey = std::tuple<int32_t, int32_t, int64_t, int64_t, int64_t, float>;
  using QuantizerKey = std::tuple<std::string, int64_t, int64_t, int64_t, uint32_t,
                                  float>; // scheme, rows, columns, tokens, options, eps

  // A prepared operation, and the plugins that drop() excluded from the problem, with the reason.
  template <class Op>
  struct Chosen {
    std::shared_ptr<const Op> op;
    std::map<std::string, std::string> refused;
  };
  template <class Table, class Key, class Op>
  bool drop(std::map<Key, Chosen<Op>>& all, const UnsupportedCall& refused);
  template <class Table>
  Backend<Table> backend_for(BackendPreference preference, const typename KindOf<Table>::Query& query,
                             const std::map<std::string, std::string>& refused);
  template <class Op>
  const Op& kernel(fvlm_kernels_query query);
  // The operation for `query`, which is that of `plain` with options besides, where the plugin that computes it without
  // them takes them; else null.
  template <class Op>
  const Op* extended(const Op& plain, const fvlm_kernels_query& query);
  template <class Op>
  const Op* with_options(const Op& plain, uint32_t options);
  const Attention& attention_for(fvlm_attention_query query);
  fvlm_attention_query attention_query(const Heads& q, const Heads& k, const Segments& of_q, const Segments& of_kv,
                                       const AttentionShape& shape) const;
  // As range_attention, by plugins; undefined where they have no such calls.
  Value bidirectional_attention(Tape& tape, Heads& q, Heads& k, Heads& v, const Segments& segments,
                                const AttentionShape& shape, const at::Tensor& into);
  Value range_attention(Tape& tape, Heads q, Heads k, Heads v, const Segments& segments, const AttentionShape& shape,
                        const at::Tensor& into);
  Value ring_attention(Tape& tape, Heads q, Heads k, Heads v, const Segments& segments, const AttentionShape& shape,
                       const at::Tensor& into);
  const PagedAttention& paged_attention_for(const fvlm_paged_attention_query& query);
  const Loss& loss_for(const Value& hidden, const Weight& head, bool records, double softcap);
  fvlm_kernels_query kernels_query(int32_t op, uint32_t options, int64_t rows, int64_t width) const;
  static KernelKey key_of(const fvlm_kernels_query& query);
  const Linear& linear_for(const at::Tensor& x, const Layer& layer, uint32_t options, at::ScalarType gradient_type);
  // The operation that computes y and d_x in place of `plain`, which computes d_weight. `pairs`: as in its query.
  const Linear& fp8_or_plain(const Linear& plain, const Weight& weight, int64_t pairs = 0);
  // What computes both gradients in fp8 of a linear whose forward is `op`; null: nothing.
  const Linear* fp8_gradients(const Linear& op, const Linear& plain);
  // The weight's gradient by such an operation, and that of the input where it is required.
  static at::Tensor gradients_in_fp8(const Linear& op, const at::Tensor& d_y, const at::Tensor& x, const Weight& weight,
                                     bool requires_input);
  Value linear(Tape& tape, const Value& x, const Layer& layer, const Value& residual, Compensation* compensation,
               bool allows_fp8);
  const Linear* extended_linear_for(const at::Tensor& x, const Layer& layer, uint32_t options, double epsilon);
  fvlm_paged_attention_query paged_query(int64_t rows, int64_t heads_q, const PagedKeys& keys,
                                         const AttentionShape& shape) const;
  void write_to_pages(const Heads& k, const Heads& v, const PagedKeys& keys, const at::Tensor& places) const;

  const Quantizer& quantizer_for(const Weight& weight, int64_t tokens);
  // The same with these options, where its plugin takes them; else null.
  const Quantizer* extended_quantizer_for(const Weight& weight, int64_t tokens, uint32_t options, double epsilon);
  Value quantized_linear(Tape& tape, const Value& x, const Layer& layer, const Value& residual);
  struct AdaptedWeight;
  struct AdaptedPass;
  struct JoinedPass;
  Value adapted_linear(Tape& tape, const Value& x, const Layer& layer, const Value& residual);
  Value joined_linear(Tape& tape, const Value& x, const Layer& layer, const Value& residual);
  Value joined_swiglu_mlp(Tape& tape, Value& x, const Layer& up, const Layer& down, const at::Tensor& into);
  static bool records_joined(Tape& tape, const JoinedPass& pass, const Value& x, const Value& residual,
                             const Weight& bias);
  void prepare_joined(JoinedPass& pass, const at::Tensor& x, bool records);
  const Linear& joined_forward(const JoinedPass& pass, int64_t rows, uint32_t options);
  using JoinedInputGradient = std::function<at::Tensor(const at::Tensor& wide_d_y, const at::Tensor& w_and_a)>;
  void push_joined_gradients(Tape& tape, JoinedPass pass, const Value& x, const Value& out, const Weight& bias,
                             const Value& residual, JoinedInputGradient pass_on);
  // Columns of `low` and of its gradient for each adapter; the gradients of B, and those of the columns.
  void joined_low_gradient(const JoinedPass& pass, const at::Tensor& d_y, const at::Tensor& d_low);
  at::Tensor adapted_linear_gradient(const AdaptedPass& pass, const at::Tensor& of_output, const at::Tensor& x,
                                     bool requires_input);
  at::Tensor frozen_linear(const at::Tensor& x, const Layer& layer, const at::Tensor& residual, bool records);
  at::Tensor frozen_input_gradient(const at::Tensor& d_y, const Weight& weight);
  at::Tensor squared_norms(const Weight& weight); // of each row, float32 or wider
  at::Tensor dora_factors(const Weight& weight, const AdaptedWeight& adapted, std::vector<at::Tensor>& norms);
  static void join_side_stream_after_backward(Tape& tape);
  at::ScalarType gradient_type(const Layer& layer) const;
  at::Tensor compensated_linear(const Linear& op, const at::Tensor& x, const Layer& layer, const at::Tensor& residual,
                                Compensation* compensation);
  void weight_gradient(const Linear& op, const at::Tensor& d_y, const at::Tensor& x, const Weight& weight,
                       const Weight& bias);
  using InputGradient = std::function<void(const at::Tensor& d_y)>; // passes a linear's gradient on
  void push_shared_weight_gradient(Tape& tape, const Linear& plain, const at::Tensor& x, const Layer& layer,
                                   const Value& y, const std::shared_ptr<SharedWeightGradient>& shared, size_t pass,
                                   InputGradient input_gradient);
  // swiglu(), or with FVLM_GELU_TANH in `options` geglu().
  Value gated(Tape& tape, const Value& gate_up, const at::Tensor& into, uint32_t options);
  // The linears of swiglu_mlp, and those that have SwiGLU or its derivative in them; null: there are none.
  struct SwigluLinears {
    const Linear *up = nullptr, *down = nullptr, *up_with_swiglu = nullptr, *down_of_swiglu = nullptr;
    bool fp8 = false;
  };
  void push_gradients(Tape& tape, const Linear& op, const Linear& plain, const Value& x, const Layer& layer,
                      const Value& y, const SharedGradientPass& pass, InputGradient pass_on);
  SwigluLinears swiglu_linears(const Tape& tape, const Value& x, const Layer& up, const Layer& down);
  // Whether SwiGLU by itself is faster than within linears of this one's plugin.
  bool prefers_swiglu_apart(const Linear& linear, int64_t rows, int64_t width);
  struct FoldedStack;
  std::vector<Layer> fold_scale(Tape& tape, std::span<const LayerWithScale> layers, const FoldedStack& stack);
  NormOutput norm(Tape& tape, const Value& x, const Value& residual, const Weight& weight, const Weight& bias,
                  double epsilon, int32_t op, const at::Tensor& into = {}, at::Tensor* compensation = nullptr);
  void add_strided(const at::Tensor& rows, const at::Tensor& to);
  // Of this many segments of rows at most so long, with states or without.
  const ShortConvolution& convolution_for(const at::Tensor& x, const ConvolutionTaps& taps, int64_t segments,
                                          int64_t longest, uint32_t options);
  const GatedDeltaRule& delta_rule_for(int64_t rows, const DeltaRule& rule, int64_t segments, int64_t longest,
                                       uint32_t options);
  const at::Tensor& ones(int64_t length);
  // The head's numbers in the type of what is multiplied with it, where a model keeps it in bfloat16.
  const at::Tensor& head_values(const Weight& head, at::ScalarType dtype);

  Registry& registry_;
  OperationsOptions options_;
  std::map<KernelKey, Chosen<Kernel>> kernels_;
  std::map<AttentionKey, Chosen<Attention>> attentions_;
  std::map<PagedAttentionKey, Chosen<PagedAttention>> paged_attentions_;
  std::map<LossKey, Chosen<Loss>> losses_;
  std::map<QuantizerKey, Chosen<Quantizer>> quantizers_;
  std::function<void(const Weight&, const at::Tensor&)> observe_linear_;
  bool did_without_fp8_ = false;
  std::vector<std::shared_ptr<const void>> dropped_; // captured graphs may still refer to them
  std::map<int64_t, at::Tensor> ones_;               // by length
  struct {
    at::Tensor stored, converted;
  } head_; // the last one of head_values()
  // By plugin, table, and the variant of a kind that has some.
  std::map<std::tuple<std::string, std::type_index, std::string>, std::shared_ptr<void>> backends_;
  TimingCache timing_cache_;
  std::vector<SelectionReport> choices_;
  std::vector<Query> queries_;
};

// Runs `work`, and again from its start each time a plugin refuses a call that it had claimed to support, with the next
// preference in its place.
template <class Work>
auto retry_with_next_plugin(Operations& operations, Work&& work) {
  while (true) {
    try {
      return work();
    } catch (const UnsupportedCall& refused) {
      if (!operations.drop(refused)) throw;
    }
  }
}

} // namespace fvlm::ops
