// Tokens that a decoder gets while it is imported, such as <loc_0> to <loc_999>: in its tokenizer, in its config and as
// rows of its embedding and output head.
#pragma once
#include "model/weights/model_directory.h"
#include "model/weights/tensor.h"

#include <cstdint>
#include <list>
#include <string>
#include <vector>

namespace fvlm {

class NewTokens {
 public:
  // Throws Error(usage) for a text that is empty or there twice.
  explicit NewTokens(std::vector<std::string> texts);

  bool empty() const { return texts_.empty(); }
  // Behind the tokens that the decoder's tokenizer has. They are no special ones: they are read wherever a text has
  // them, and stand in what the model writes. Throws Error(data) where one is a token already, and for decoders that
  // have further tables of tokens, or their output head in codes.
  void add_to(ModelPart& decoder, const WeightSchemes& schemes);
  // With rows for them where the weight of this name in the model directory has a row for each token: a new row is the
  // mean of those of the tokens before. Otherwise `tensor` itself. What is returned lives as long as this.
  const TensorView* grown(const std::string& name, const TensorView* tensor);

 private:
  void add_to_tokenizer(HuggingFaceFolder& folder);

  std::vector<std::string> texts_;
  int64_t first_ = 0;      // id of the first of them
  int64_t vocabulary_ = 0; // of the config, then
  std::list<TensorView> grown_;
};

} // namespace fvlm
