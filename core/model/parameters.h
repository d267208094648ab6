// The parameters of a model as views of flat buffers, one of values and one of gradients. Weights that one matrix
// product reads together (q, k, v; gate, up) are contiguous.
#pragma once
#include "model/weights/blocks.h"
#include "model/weights/packed_weight.h"
#include "ops/parameter.h"

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace fvlm::model {

using fvlm::ParameterBlock;
using fvlm::ParameterSpec;

class Parameters;

struct ArenaOptions {
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat, gradient_dtype = at::kFloat;
  std::function<bool(const ParameterSpec&)> trains = [](const ParameterSpec&) { return true; };
  // load_model() asks for what is_bfloat16 says below, of its file.
  bool keeps_bfloat16 = false;
  // How a weight is quantized, or null. What is, does not train. Empty: nothing is.
  std::function<const PackedScheme*(const ParameterSpec&)> scheme_of = {};
  // Of a model that computes in float32 and does not train: whether a weight is kept in bfloat16, as its file has it
  // (ops::Parameter). A block is where all of it is, unless it has adapters. Empty: none is.
  std::function<bool(const ParameterSpec&)> is_bfloat16 = {};
  // Gradients have no arena: those of a bucket have memory from the first write to a matrix of it until they have been
  // reduced. Vectors, of which a backward pass may write some early, lie elsewhere until then.
  bool buffers_gradients = false;
  // The rank of the adapter of a frozen weight, for which its block gets room (ops::Parameter::joined). Empty: 0 for
  // all.
  std::function<int64_t(const ParameterSpec&)> rank_of = {};
  const Parameters* shares_values_with = nullptr; // same model and options: shares its values, has its own gradients
  // Of another model of the same parts: shares the values of its frozen weights below adapters, or those that is_shared
  // says.
  const Parameters* shares_base_with = nullptr;
  std::function<bool(const ParameterSpec&)> is_shared = {};
};

// Parameters that train and lie next to each other, whose gradients several ranks reduce in one operation.
struct GradientBucket {
  int64_t begin = 0, length = 0; // of Parameters::trained()
  std::vector<ops::Parameter*> parameters;
  // With ArenaOptions::buffers_gradients: where they are reduced, and those that lie elsewhere, with their places
  // there.
  std::shared_ptr<ops::GradientBuffer> buffer;
  std::vector<std::pair<at::Tensor, at::Tensor>> vectors;
};

class Parameters {
 public:
  // Uninitialised values. A block trains as a whole where one of its tensors does.
  Parameters(const std::vector<ParameterBlock>& blocks, const ArenaOptions& options);
  Parameters(const Parameters&) = delete;
  Parameters& operator=(const Parameters&) = delete;

  ops::Parameter& at(const std::string& name);
  const ops::Parameter& at(const std::string& name) const { return const_cast<Parameters*>(this)->at(name); }
  ops::Weight weight(const std::string& name) { return ops::Weight(at(name)); }
  ops::Weight fused(const std::vector<std::string>& names); // adjacent tensors of one block as one

  std::deque<ops::Parameter>& all() { return all_; }
  const std::deque<ops::Parameter>& all() const { return all_; }
  int64_t element_count() const; // of all, for ops::ModelThreads

  // What trains, flat: element i of the one belongs to element i of the other. Between parameters may lie a few
  // elements that are nobody's and stay zero. With ArenaOptions::buffers_gradients, gradients() is empty.
  const at::Tensor& trained() const { return trained_; }
  const at::Tensor& gradients() const { return gradients_; }

  // All of the gradients, the last parameters first: as a backward pass is done with them.
  const std::vector<GradientBucket>& gradient_buckets() const { return buckets_; }

  // The next backward pass overwrites gradients instead of accumulating. Touches no memory.
  void reset_gradients();
  // Zeroes the gradients that the last backward pass did not write.
  void zero_missing_gradients();
  // Which parameters have a gradient from this step's backward passes so far, in the order of all().
  std::vector<bool> gradient_flags() const;
  void set_gradient_flags(const std::vector<bool>& which);
  // Adds the gradients of another replica.
  void add_gradients(Parameters& other);

 private:
  struct Place; // of a block in the buffers
  void divide_gradients(const std::vector<ParameterBlock>& blocks, const std::vector<Place>& places);
  void buffer_gradients(const std::vector<ParameterBlock>& blocks, const std::vector<Place>& places,
                        const at::TensorOptions& options);
  at::Tensor gradients_of(const ParameterBlock& block, int64_t begin, GradientBucket& bucket);
  void add_joined(const ParameterBlock& block, int64_t room, int64_t begin, bool is_own);
  void add_packed(const ParameterBlock& block, const PackedScheme& scheme, const ArenaOptions& options);

  at::Tensor trained_, fixed_, gradients_;
  at::Tensor fixed_bfloat16_;   // see ArenaOptions::is_bfloat16
  at::Tensor vector_gradients_; // of vectors, with ArenaOptions::buffers_gradients
  int64_t vectors_end_ = 0;
  std::deque<ops::Parameter> all_;
  std::vector<GradientBucket> buckets_;
  std::map<std::string, ops::Parameter*> by_name_;
};

} // namespace fvlm::model
