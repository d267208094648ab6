// A batch as a file of safetensors: what `trace` and `generate` read. frames [N, 3, H, W], normalised, all samples one
// after the other, and frame_counts [B]; where they are the cells of images of any size, image_grids [images, 2], the
// lines and columns of each, and image_counts [B]; with videos among them image_grids [images, 4], behind these the
// steps of time and the frames of each, both 1 for an image, and step_seconds [images], a step's length; for an encoder
// of bytes source_bytes and source_lengths [B] in their place; and of the texts input_ids, text_lengths [B] and
// loss_mask.
#pragma once
#include "model/pack.h"
#include "model/weights/safetensors.h"

#include <filesystem>

namespace fvlm::model {

class BatchFile {
 public:
  // `reads_bytes`: whether the model's encoder does. Throws Error(data).
  BatchFile(const std::filesystem::path& path, bool reads_bytes);

  enum class Texts {
    labelled,
    pairs,  // chosen_ and rejected_ ones
    prompts // no loss_mask
  };
  // Their frames or bytes lie in the file's mapping; frames that are all the same are copies of one. Throws Error(data)
  // for what makes no sense, and for tokens that the vocabulary does not have.
  std::vector<Sample> samples(Texts texts, int64_t vocabulary) const;

  // The frames of all samples, or the bytes of their sources.
  const at::Tensor& frames() const { return frames_; }

 private:
  at::Tensor tensor_named(const std::string& name) const;
  std::vector<int64_t> integers(const std::string& name) const;
  void read_grids(std::vector<Sample>& samples) const;
  void read_texts(const std::string& side, bool labelled, std::vector<Sample>& samples) const;
  void check_tokens(const std::vector<Sample>& samples, int64_t vocabulary) const;
  [[noreturn]] void fail(const std::string& name, const std::string& what) const;

  Safetensors file_;
  bool reads_bytes_;
  at::Tensor frames_;
};

} // namespace fvlm::model
