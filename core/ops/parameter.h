// Parameters as operations see them: a value, and the place where its gradient is accumulated.
#pragma once
#include "ops/adapter.h"
#include "ops/gradient_buffer.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace fvlm::ops {

// One tensor of a model directory. `value` and `gradient` are views of the model's arenas (one flat buffer for each).
// `value` has the model's dtype, or is bfloat16 in a model that computes in float32 and does not train: then linears
// read it as it is (FVLM_BFLOAT16_WEIGHT), and whatever else reads it converts it.
struct Parameter {
  std::string name;           // "decoder.model.layers.0.self_attn.q_proj.weight"
  at::Tensor value, gradient; // gradient: undefined for a frozen parameter
  // Of a quantized matrix: its packed tensors and their scheme (fvlm/quantizer.h). `value` then has its shape and no
  // memory. Linears are all that reads it.
  std::vector<at::Tensor> packed;
  std::string scheme;                     // empty: `value` holds the numbers
  std::shared_ptr<const Adapter> adapter; // what is added to products with this frozen matrix; null: nothing
  // The matrix in which a frozen weight and its neighbours lie, with room for their adapters: see JoinedWeight. `value`
  // is then a view with strided rows. Undefined: none, or one that another model writes its adapters to.
  at::Tensor joined;
  // int64 [rows]: the row of its file that each row is. Undefined: the same one. See in_memory() and in_file() of
  // model/loading.h.
  at::Tensor rows_in_file;
  bool allows_fp8 = false;          // its products may be computed in fp8, where OperationsOptions::fp8 is set
  bool in_base = false;             // a frozen weight below adapters, which checkpoints leave out
  bool has_gradient = false;        // a gradient was written in this step, so that the next write has to accumulate
  bool on_side_stream = false;      // that write was enqueued on the side stream
  GradientBuffer* buffer = nullptr; // that `gradient` is a view of, where its memory is not there all the time
  bool is_complete = false;         // nothing may write the gradient any more in this step (GradientMarks)
};

// Equally spaced tensors of one shape as a single view with a leading dimension. Undefined where they are not.
at::Tensor strided_stack(std::span<const at::Tensor> tensors);

// The parameter that an operation reads: a single one, or several that lie next to each other in memory (q, k, v; gate,
// up) as one.
class Weight {
 public:
  Weight() = default;
  explicit Weight(Parameter& parameter) : Weight(std::vector<Parameter*>{&parameter}) {}
  // For a parameter that exists during one step only, such as a padded copy.
  explicit Weight(std::shared_ptr<Parameter> temporary) : Weight(*temporary) { owned_ = std::move(temporary); }
  // The parts have to be adjacent in their arenas, in this order, and may differ in their first dimension only.
  explicit Weight(std::vector<Parameter*> parts);

  // The same memory as [first dimension, product of the others], to use a convolution's weight in a linear.
  Weight as_matrix() const;
  // The same memory as [product of all dimensions but the last, the last one].
  Weight as_rows() const;
  // Read as 1 + its value, which is computed now; the gradient stays that of the parameter.
  Weight plus_one() const;
  // Rows [first, first + count) of a single parameter, such as the query's part of a fused projection. The first write
  // to the gradient of any such part zeroes that of the whole parameter.
  Weight rows(int64_t first, int64_t count) const;

  bool defined() const { return value_.defined(); }
  bool requires_grad() const { return gradient_.defined(); }
  bool is_quantized() const { return !packed_.empty(); }
  bool is_adapted() const; // in any part
  bool is_plain() const { return !is_quantized() && !is_adapted(); }
  bool is_bfloat16() const { return value_.scalar_type() == at::kBFloat16; }
  bool allows_fp8() const { return parts_.front()->allows_fp8; }
  at::Tensor joined() const; // of all parts that lie in it; else undefined
  bool is_strided() const { return value_.dim() == 2 && value_.size(0) > 1 && value_.stride(0) != value_.size(1); }
  const std::vector<at::Tensor>& packed() const { return packed_; } // of a quantized weight, whose value() is a shape
  const std::string& scheme() const { return parts_.front()->scheme; }
  // The parameters that it is made of, in the order of its rows.
  const std::vector<Parameter*>& parts() const { return parts_; }
  const at::Tensor& value() const { return value_; }
  const at::Tensor& gradient() const { return gradient_; }
  bool has_gradient() const; // of any part
  // Has to be called once before each write to the gradients of these weights. True means that the write has to
  // accumulate, false that it has to overwrite; the answer is the same for all of them. Synchronizes with writes that
  // were enqueued on the side stream, so that the caller may enqueue on the current stream.
  static bool begin_write(std::span<const Weight> weights);
  static bool begin_write(const Weight& weight, const Weight& other = {}) {
    return begin_write(std::array{weight, other});
  }
  // The same for a write that the caller enqueues on the device runtime's side stream.
  static bool begin_side_stream_write(std::span<const Weight> weights);
  // Accumulates a gradient that the caller has already computed.
  void add_gradient(const at::Tensor& gradient) const;

 private:
  static bool begin_gradients(std::span<const Weight> weights);
  void begin_gradient(bool accumulate) const;
  bool is_part() const { return gradient_.numel() < parts_.front()->gradient.numel(); } // see rows()
  bool is_on_side_stream() const;
  void set_on_side_stream(bool is_on_side_stream) const;

  std::vector<Parameter*> parts_;
  std::shared_ptr<Parameter> owned_;
  at::Tensor value_, gradient_;
  std::vector<at::Tensor> packed_;
};

} // namespace fvlm::ops
