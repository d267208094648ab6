// Still images that are repeated to several frames, as they are asked about and traced: encoded once, with the results
// of a model that encodes every copy.
#include "../model/encoded_frames.h"
#include "../train/small_run.h"
#include "data/media/write_image.h"
#include "infer/generator.h"
#include "model/loading.h"
#include "model/trace.h"
#include "serve/prompt_writer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/concat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>

namespace fvlm::train {
namespace {

constexpr int64_t image_size = 16, patch_size = 8, copies = 5;

class Stills : public SmallRun {
 protected:
  Stills() {
    run("run", {}, {.stage = "align"});
    const StageFolder align(folder("run") / "align");
    model_ = align.of(align.steps().back());
  }

  // A still, a video, a text alone, and another still.
  static std::vector<model::Sample> samples() {
    const at::Tensor frames = at::arange(4 * 3 * 16 * 16, at::kFloat).div(900).sin().view({4, 3, 16, 16});
    return {{frames.narrow(0, 0, 1), {{{5, 9, 3}, {}}}, copies},
            {frames.narrow(0, 1, 2), {{{7, 2}, {}}}},
            {{}, {{{4, 4, 8}, {}}}},
            {frames.narrow(0, 3, 1), {{{6}, {}}}, 2}};
  }
  static std::vector<model::Sample> with_every_copy() {
    auto all = samples();
    for (model::Sample& sample : all)
      if (sample.frames.defined()) sample.frames = sample.frames.repeat_interleave(std::exchange(sample.copies, 1), 0);
    return all;
  }

  static double largest_difference(const at::Tensor& a, const at::Tensor& b) {
    EXPECT_EQ(a.sizes(), b.sizes());
    return (a - b).abs().max().item<double>();
  }

  fs::path model_;
};

TEST_F(Stills, AreEncodedOnceForPrompts) {
  infer::Generator generator(model_, {.dtype = "fp64"}, registry_);
  const c10::InferenceMode no_autograd;
  model::EncodedFrames encoded(image_size, patch_size);
  at::Tensor maps, all_maps;
  const auto shared = generator.encode_prompts(samples(), &maps);
  EXPECT_EQ(encoded.take(), 4);
  const auto apart = generator.encode_prompts(with_every_copy(), &all_maps);
  EXPECT_EQ(encoded.take(), copies + 4);
  for (size_t i = 0; i < apart.size(); ++i) {
    ASSERT_EQ(shared[i].visual.defined(), apart[i].visual.defined());
    if (!apart[i].visual.defined()) continue;
    EXPECT_LT(largest_difference(shared[i].visual, apart[i].visual), 1e-9) << i;
  }
  EXPECT_EQ(apart[0].visual.size(0), copies);
  EXPECT_GT(largest_difference(apart[0].visual[0], apart[0].visual[4]), 1e-6) << "each copy has a query of its own";
  EXPECT_LT(largest_difference(maps, all_maps), 1e-9);
}

TEST_F(Stills, AreAnsweredAboutWithTheSameTokens) {
  infer::Generator generator(model_, {}, registry_);
  model::EncodedFrames encoded(image_size, patch_size);
  const auto answers = [&](const std::vector<model::Sample>& samples) {
    std::vector<infer::Answer> all;
    generator.answers(samples, {.limit = 12, .ignore_eos = true},
                      [&](const infer::Answer& one) { all.push_back(one); });
    return all;
  };
  const auto shared = answers(samples());
  EXPECT_EQ(encoded.take(), 4);
  const auto apart = answers(with_every_copy());
  ASSERT_EQ(shared.size(), apart.size());
  for (size_t i = 0; i < apart.size(); ++i) {
    EXPECT_EQ(shared[i].ids, apart[i].ids) << i;
    EXPECT_EQ(shared[i].frames, apart[i].frames) << i;
    EXPECT_EQ(shared[i].prompt, apart[i].prompt) << i;
  }
  EXPECT_EQ(shared[0].frames, copies);
}

// --image-frames of `generate`, `chat` and `serve`.
TEST_F(Stills, AreWrittenIntoAPromptOnce) {
  const fs::path file = folder("a.png");
  Image image{24, 24, std::vector<uint8_t>(3 * 24 * 24)};
  for (size_t i = 0; i < image.rgb.size(); ++i) image.rgb[i] = static_cast<uint8_t>(7 * i);
  const std::string bytes = write_png(image);
  write_file_atomic(file, bytes);
  const Tokenizer tokenizer = Tokenizer::from_file(model_ / "decoder" / "tokenizer.json");
  infer::Generator generator(model_, {}, registry_);
  const FramePreparation preparation(image_size, {});
  const serve::PromptWriter writer(tokenizer, {}, {preparation, copies, "", {}, patch_size});
  serve::ChatRequest decoded, prepared;
  decoded.turns = prepared.turns = {{"user", "Which colour?"}};
  decoded.images = {bytes};
  prepared.frames =
      serve::prompt_frames(MediaFile(file, {.image_size = image_size, .image_frames = copies}), preparation, true);
  const c10::InferenceMode no_autograd;
  for (const serve::ChatRequest& request : {decoded, prepared}) {
    const serve::WrittenPrompt written = writer.write(request);
    EXPECT_EQ(written.sample.frames.size(0), 1);
    EXPECT_EQ(written.sample.copies, copies);
    EXPECT_EQ(generator.require_room(written.sample), copies + std::ssize(written.sample.texts[0].tokens));
    EXPECT_EQ(written.frame_keys, std::vector<std::string>(copies, written.frame_keys.at(0)));
    model::EncodedFrames encoded(image_size, patch_size);
    at::Tensor maps;
    (void)generator.encode_prompts({&written.sample, 1}, &maps);
    EXPECT_EQ(encoded.take(), 1);
    const auto shown = writer.attention_of(written.sample, maps);
    ASSERT_EQ(shown.frames.size(), static_cast<size_t>(copies));
    EXPECT_EQ(shown.frames[0], shown.frames[4]);
    EXPECT_NE(shown.shares[0], shown.shares[4]);
  }
}

// In a batch file every copy stands; in `trace` and `generate --batch` they are encoded once.
TEST_F(Stills, AreTracedOnce) {
  const fs::path batch = folder("batch.safetensors"), out = folder("out.safetensors");
  std::vector<at::Tensor> frames;
  std::vector<int64_t> counts, tokens, lengths;
  for (const model::Sample& sample : with_every_copy()) {
    if (sample.frames.defined()) frames.push_back(sample.frames);
    counts.push_back(model::frames_of(sample));
    const auto& text = sample.texts[0].tokens;
    tokens.insert(tokens.end(), text.begin(), text.end());
    lengths.push_back(std::ssize(text));
  }
  model::write_tensors(batch, {{"frames", at::concat(frames)},
                               {"frame_counts", at::tensor(counts, at::kLong)},
                               {"input_ids", at::tensor(tokens, at::kLong)},
                               {"text_lengths", at::tensor(lengths, at::kLong)},
                               {"loss_mask", at::ones({std::ssize(tokens)}, at::kLong)}});
  model::TraceRequest request{.model = model_, .batch = batch, .out = out, .mode = "autoregressive"};
  request.execution.dtype = "fp64";
  model::EncodedFrames encoded(image_size, patch_size);
  (void)model::trace(request, registry_);
  EXPECT_EQ(encoded.take(), 4);
  const Safetensors traced = Safetensors::open(out);
  infer::Generator generator(model_, {.dtype = "fp64"}, registry_);
  const c10::InferenceMode no_autograd;
  std::vector<at::Tensor> visual;
  for (const infer::Prompt& prompt : generator.encode_prompts(with_every_copy()))
    if (prompt.visual.defined()) visual.push_back(prompt.visual);
  EXPECT_LT(largest_difference(model::tensor_over(traced.at("visual_tokens")), at::concat(visual)), 1e-9);
}

} // namespace
} // namespace fvlm::train
