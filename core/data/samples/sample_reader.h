// SampleReader: measure() reads the text and the number of frames of a sample, which packing needs; decode() reads the
// pixels later, when the pack is known.
#pragma once
#include "data/chat.h"
#include "data/enclosing_tokens.h"
#include "data/media/frame_preparation.h"
#include "data/samples/frames.h"
#include "data/samples/marked_images.h"
#include "data/samples/question.h"
#include "data/samples/sample.h"
#include "data/samples/sample_content.h"
#include "data/shards/shard.h"
#include "recipe/plan.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace fvlm {

class VideoDecoder;
struct InputContent;

// The JSON key under which `preprocess` stores why a sample is broken.
inline constexpr const char* broken_key = "fvlm_broken";
// Sample::dropped, Sample::lacks_answer and Sample::exceeds_frames of one that is not used.
inline constexpr const char *dropped_key = "fvlm_dropped", *lacks_answer_key = "fvlm_lacks_answer",
                            *exceeds_frames_key = "fvlm_exceeds_frames";
// Sample::has_short_answer of one that is used.
inline constexpr const char* short_answer_key = "fvlm_short_answer";

class SampleReader {
 public:
  // Mix, tokenizer and decoder must outlive it. Without a decoder, videos other than GIFs are rejected.
  SampleReader(const plan::Mix& mix, const Tokenizer& tokenizer, const FramePreparation& frames,
               const VideoDecoder* video, const plan::VisualRows& visual_rows = {});

  // Tokenizes the text and determines the number of frames. Throws Error(data) with the shard, the sample and the field
  // for a broken sample, ReadError for a failing disk. A sample that max_text_tokens excludes is not an error: see
  // Sample::dropped. [any thread]
  Sample measure(const Shard& shard, const ShardSample& members, const plan::Source& source) const;

  // Writes [sample.distinct_frames(), 3, H, W] floats, normalised; not of a sample with bytes. Errors as above.
  // [any thread]
  void decode(const Shard& shard, const Sample& sample, std::span<float> frames) const;
  // The same before normalization, [sample.distinct_frames(), H, W, 3], and the values that normalization gives them.
  void decode_pixels(const Shard& shard, const Sample& sample, std::span<uint8_t> frames) const;
  const NormalizationTable& normalization() const { return frames_.normalization(); }

  // Of a sample that measure() accepts, see marked_images.h. Errors as above. [any thread]
  MarkedImages marked_images(const Shard& shard, ShardSample members, const plan::Source& source) const;

  // Calls `take` for each frame before normalization, as bytes [H, W, 3]; only once for a single
  // image that is repeated. Errors as above. [any thread]
  using TakeFrame = FramePreparation::TakeFrame;
  void each_frame(const Shard& shard, const Sample& sample, const TakeFrame& take) const;

 private:
  Sample measured(const Shard& shard, ShardSample members, const plan::Source& source) const;
  Sample measure_inputs(const Shard& shard, ShardSample members, const Parts& parts, const plan::Source& source) const;
  Sample measure_input(const Shard& shard, const ShardSample& members, const InputContent& content,
                       std::optional<int64_t> told, bool text_only) const;
  void mention(FoundFrames& found, const Sample& sample, std::vector<Turn>& turns, std::string_view behind) const;
  bool has_video_text(const FoundFrames& found) const;
  void write_objects(const Shard& shard, const ShardSample& members, SampleContent& content) const;
  ChatTokens encode_turns(const Conversation& talk) const;
  void encode(SampleContent telling, Sample& sample) const;
  std::vector<SampleText> teacher_texts(const Parts& parts, const SampleContent& content) const;
  SampleText teacher_text(const std::string& source, const std::string& answer) const;
  void fit_teacher_texts(Sample& sample) const;
  void encode_document(const std::optional<std::string>& document, Sample& sample) const;
  void encode_question(const Question& question, bool text_only, Sample& sample) const;
  void limit(SampleText& text, Sample& sample) const;
  void place_visual_rows(Sample& sample) const;
  void count_frames(const Shard& shard, const ShardSample& members, FoundFrames found, std::optional<int64_t> told,
                    bool text_only, Sample& sample) const;
  void count_images(const FoundFrames& found, std::optional<int64_t> told, Sample& sample) const;
  void count_tiles(const Shard& shard, bool still, Sample& sample) const;
  void limit_tiles(int64_t images, Sample& sample) const;
  void count_pixels(const Shard& shard, std::optional<int64_t> told, Sample& sample) const;
  void count_cells(int64_t frames, Sample& sample) const;
  void time_video(const Shard& shard, Sample& sample) const;
  void count_video_pictures(const Shard& shard, Sample& sample) const;
  int64_t most_video_frames() const;
  void place_video_cells(ImageSize frame, std::vector<double> times, Sample& sample) const;

  using PutFrame = std::function<void(std::span<const uint8_t> pixels, size_t begin)>;
  void put_frames(const Shard& shard, const Sample& sample, size_t elements, const PutFrame& put) const;
  void decode_images(const Shard& shard, const Sample& sample, const TakeFrame& take) const;
  void decode_video(const Shard& shard, const Sample& sample, const TakeFrame& take) const;
  void copy_pixels(const Shard& shard, const Sample& sample, const TakeFrame& take) const;

  const plan::Mix& mix_;
  const Tokenizer& tokenizer_;
  ChatTemplate chat_;
  QuestionEncoder questions_;
  EmbeddingTokens embedding_tokens_;
  FramePreparation frames_;
  const VideoDecoder* video_;
  plan::VisualRows visual_rows_;
  bool has_tile_text_;                    // stands in texts for images
  std::optional<plan::BoxForm> box_form_; // nothing: neither the mix nor the decoder's family has one
  std::optional<TokenId> document_start_; // of a mix of documents, which are not cut here
};

} // namespace fvlm
