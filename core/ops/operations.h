// The operations a model is made of. Each chooses its plugin when it first meets a shape class, prepares it once, and
// leaves a step on the tape for its backward pass. Activations are [rows, width]; rows are tokens of a pack.
#pragma once
#include "device/runtime.h"
#include "ops/attention.h"
#include "ops/joint.h"
#include "ops/kernels.h"
#include "ops/loss.h"
#include "ops/measured_times.h"
#include "ops/parameter.h"
#include "ops/tape.h"
#include "plugin/selection.h"

#include <functional>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <variant>

namespace fvlm::ops {

// Columns of a value that hold heads side by side, from `column` on.
struct Heads {
  Value value;
  int64_t column, count;
};

// Which rows see each other: see fvlm/attention.h. Lengths are capacities, known before the content is.
struct Segments {
  at::Tensor starts;    // int32 [segments + 1]
  at::Tensor positions; // int32 [rows]; undefined where nothing is rotated
  int64_t longest;      // no segment has more rows
  bool even = false;    // the first have as many and fill the rows, the others none
};

struct Rotary {
  int64_t dimensions = 0; // of each head, the leading ones; 0: none
  double theta = 10000;
};

struct AttentionShape {
  int64_t head_dim;
  bool causal = false;
  Rotary rotary = {};
};

struct OperationsOptions {
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;          // of activations and parameters
  at::ScalarType gradient_dtype = at::kFloat; // of parameters' gradients: dtype or float32
  bool deterministic = false;
  Wish attention, loss, kernels;
  std::map<std::string, Wish> operations; // "rmsnorm" -> what to take for it in place of `kernels`
};

class Operations {
 public:
  Operations(Registry& registry, OperationsOptions options);
  const OperationsOptions& options() const { return options_; }
  at::TensorOptions tensor_options() const { return at::TensorOptions(options_.device).dtype(options_.dtype); }

  // x weight^T + bias. In one of two passes that share the weight's gradient, x should lie in pass.input().
  Value linear(Tape& tape, const Value& x, const Weight& weight, const Weight& bias = {}, const JointPass& pass = {});
  struct Layer {
    Weight weight, bias;
  };
  // The last of each so many rows. Below float32 what their sums with the residual lose by rounding is carried along in
  // `rest`: first what the residual lost (undefined: nothing), and then what the sum loses.
  struct Carried {
    int64_t step;
    at::Tensor rest;
  };
  // The same, and the residual where there is one.
  Value linear(Tape& tape, const Value& x, const Layer& layer, const Value& residual, Carried* carried = nullptr);
  // down(gelu(up(x))), and the residual where there is one.
  Value gelu_mlp(Tape& tape, const Value& x, const Layer& up, const Layer& down, const Value& residual = {},
                 Carried* carried = nullptr);

  // A matrix whose rows a GPU's products cannot read 16 bytes at a time, with as many columns of zeros behind its own
  // as that wants: for a linear of rows that have them, too. Its gradient is passed on when the tape has come back
  // here.
  Weight widened(Tape& tape, const Weight& weight);
  int64_t widened(int64_t columns) const;

  // Linears whose output is scaled, as ones that need not be. Their gradients are passed on to those of the parameters
  // when the tape has come back here.
  struct ScaledLayer {
    Layer layer;
    Weight scale;
  };
  std::vector<Layer> scaled(Tape& tape, std::span<const ScaledLayer> layers);

  // `into`, here and below: where the result is to lie; undefined: in memory of its own.
  // y = norm(sum), sum = x + residual; without a residual sum is x itself.
  struct Normed {
    Value y, sum;
  };
  // rest: below float32, what the residual lost by rounding (undefined: nothing), and then what the sum loses. NULL:
  // that is lost.
  Normed rmsnorm(Tape& tape, const Value& x, const Value& residual, const Weight& weight, double epsilon,
                 const at::Tensor& into = {}, at::Tensor* rest = nullptr);
  Normed layernorm(Tape& tape, const Value& x, const Value& residual, const Weight& weight, const Weight& bias,
                   double epsilon, at::Tensor* rest = nullptr);
  Value layernorm(Tape& tape, const Value& x, const Weight& weight, const Weight& bias, double epsilon);

  // Columns of x as a value by itself, in the same memory.
  Value columns(Tape& tape, const Value& x, int64_t first, int64_t count);

  // silu(gate) * up, which lie side by side
  Value swiglu(Tape& tape, const Value& gate_up, const at::Tensor& into = {});
  // residual + scale * x
  Value layerscale(Tape& tape, const Value& x, const Weight& scale, const Value& residual);

  // Rotates q and k on their way, the plugin itself where it can; the memory of q and k may then hold them rotated.
  // `lent`: k and v as others read them, whose gradient the plugin takes in as well where it can.
  Value attention(Tape& tape, Heads q, Heads k, Heads v, const Segments& of_q, const Segments& of_kv,
                  const AttentionShape& shape, const at::Tensor& into = {}, const Value& lent = {});

  // Rotates the first `heads` heads of each row, in the memory of x.
  Value rotate(Tape& tape, const Value& x, int64_t heads, int64_t head_dim, const Rotary& rotary,
               const at::Tensor& positions);

  // Of softmax(hidden weight^T), a row; int64 targets, negative: none.
  Value cross_entropy(Tape& tape, const Value& hidden, const Weight& head, const at::Tensor& targets);
  // The same where the gradient of each loss is known beforehand: both passes at once. backward() of the tape then
  // takes them as they are. The losses themselves.
  at::Tensor weighted_cross_entropy(Tape& tape, const Value& hidden, const Weight& head, const at::Tensor& targets,
                                    const at::Tensor& weights);

  // The plugin that refused this call is not asked again for that shape class: the next of the preferences does it.
  // What was begun with it, on a tape, cannot be ended. False: the call was none of these operations'. [setup]
  bool drop(const UnsupportedCall& refused);

  // Every choice made so far, one for each shape class, with what was refused and what was measured.
  const std::vector<SelectionReport>& choices() const { return choices_; }
  // What each of them was asked for.
  using Query = std::variant<fvlm_attention_query, fvlm_loss_query, fvlm_kernels_query>;
  const std::vector<Query>& queries() const { return queries_; }

 private:
  using KernelKey =
      std::tuple<int32_t, uint32_t, int64_t, int64_t, int64_t, int32_t, int32_t, int32_t, float, float, uint8_t>;
  using AttentionKey = std::tuple<int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, int64_t, int64_t,
                                  int64_t, float, float, int32_t, int32_t, int32_t, int32_t>;
  using LossKey = std::tuple<int32_t, int32_t, int64_t, int64_t, int64_t>;

  // An operation of a shape class, and the plugins that refused a call of it although they had said that they do it.
  template <class Op>
  struct Chosen {
    std::shared_ptr<const Op> op;
    std::map<std::string, std::string> refused;
  };
  template <class Table, class Key, class Op>
  bool drop(std::map<Key, Chosen<Op>>& all, const UnsupportedCall& refused);
  template <class Table>
  Backend<Table> backend_for(Wish wish, const typename KindOf<Table>::Query& query,
                             const std::map<std::string, std::string>& refused);
  template <class Op>
  const Op& kernel(fvlm_kernels_query query);
  const Attention& attention_for(fvlm_attention_query query);
  const Loss& loss_for(const Value& hidden, const Weight& head, bool records);
  fvlm_kernels_query kernels_query(int32_t op, uint32_t options, int64_t rows, int64_t width) const;
  void rotate_before(Tape& tape, Heads& q, Heads& k, Heads& v, const Segments& of_q, const Segments& of_kv,
                     const AttentionShape& shape);
  struct Stack;
  std::vector<Layer> scaled(Tape& tape, std::span<const ScaledLayer> layers, const Stack& stack);
  void weight_gradient(const Linear& op, const at::Tensor& d_y, const at::Tensor& x, const Weight& weight,
                       const Weight& bias);
  void push_joint(Tape& tape, const Linear& op, const Value& x, const Weight& weight, const Weight& bias,
                  const Value& y, const std::shared_ptr<JointRows>& joint, size_t pass);
  at::ScalarType gradient_type(const Layer& layer) const;
  const Linear& linear_of(const at::Tensor& x, const Layer& layer, uint32_t options, at::ScalarType gradient_type);
  at::Tensor product(const Linear& op, const at::Tensor& x, const Layer& layer, const at::Tensor& residual,
                     Carried* carried);
  void add(const at::Tensor& rows, const at::Tensor& to);
  Normed norm(Tape& tape, const Value& x, const Value& residual, const Weight& weight, const Weight& bias,
              double epsilon, int32_t op, const at::Tensor& into = {}, at::Tensor* rest = nullptr);

  Registry& registry_;
  OperationsOptions options_;
  std::map<KernelKey, Chosen<Kernel>> kernels_;
  std::map<AttentionKey, Chosen<Attention>> attentions_;
  std::map<LossKey, Chosen<Loss>> losses_;
  std::vector<std::shared_ptr<const void>> dropped_;                              // recorded work may lead to them
  std::map<int64_t, at::Tensor> ones_;                                            // by their number
  std::map<std::pair<std::string, std::string>, std::shared_ptr<void>> backends_; // (plugin, kind)
  MeasuredTimes times_;
  std::vector<SelectionReport> choices_;
  std::vector<Query> queries_;
};

// The result of `work`, which is begun again where a plugin refuses a call that it had said it does.
template <class Work>
auto with_next_preference(Operations& operations, Work&& work) {
  while (true) {
    try {
      return work();
    } catch (const UnsupportedCall& refused) {
      if (!operations.drop(refused)) throw;
    }
  }
}

} // namespace fvlm::ops
