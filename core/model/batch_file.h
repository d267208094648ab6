// A batch as a file of safetensors: what `trace` and `generate` read. frames [N, 3, H, W], normalised, all samples one
// after the other, frame_counts [B], and of the texts input_ids, text_lengths [B] and loss_mask.
#pragma once
#include "model/pack.h"
#include "model/weights/safetensors.h"

#include <filesystem>

namespace fvlm::model {

class BatchFile {
 public:
  // Throws Error(data).
  explicit BatchFile(const std::filesystem::path& path);

  enum class Texts {
    labelled,
    pairs,  // chosen_ and rejected_ ones
    prompts // no loss_mask
  };
  // Their frames lie in the file's mapping. Throws Error(data) for what makes no sense, and for tokens that the
  // vocabulary does not have.
  std::vector<Sample> samples(Texts texts, int64_t vocabulary) const;

  int64_t height() const { return frames_.size(2); }
  int64_t width() const { return frames_.size(3); }

 private:
  at::Tensor tensor_named(const std::string& name) const;
  std::vector<int64_t> integers(const std::string& name) const;
  void read_texts(const std::string& side, bool labelled, std::vector<Sample>& samples) const;
  void check_tokens(const std::vector<Sample>& samples, int64_t vocabulary) const;
  [[noreturn]] void fail(const std::string& name, const std::string& what) const;

  Safetensors file_;
  at::Tensor frames_;
};

} // namespace fvlm::model
