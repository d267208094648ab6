#include "model/batch_file.h"

#include "base/error.h"
#include "model/loading.h"
#include "recipe/placeholders.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

namespace fvlm::model {
namespace {

std::string how_it_is(bool reads_bytes) {
  return fmt::format(
      "a batch for this model holds {}, input_ids [all tokens], text_lengths [samples] and loss_mask "
      "[all tokens] of 0 and 1 (not for prompts); for dpo chosen_ and rejected_ versions of the last "
      "three; nothing is padded; an id of -1 stands for one visual row of the sample's {}",
      reads_bytes
          ? "source_bytes [all bytes] of uint8, source_lengths [samples]"
          : "frames [all frames, 3, height, width], frame_counts [samples], for encoders of images of any "
            "size also image_grids [all images, 2] and image_counts [samples], with videos among them image_grids "
            "[all images, 4] and step_seconds [all images]",
      reads_bytes ? "source" : "frames");
}

std::string sum_text(int64_t count, const char* what) {
  return fmt::format("do not sum to the {} {} that are there", count, what);
}

// How often the first frame stands there, if there is no other; otherwise 1.
int64_t copies_in(const at::Tensor& frames) {
  for (int64_t i = 1; i < frames.size(0); ++i)
    if (!at::equal(frames[i], frames[0])) return 1;
  return frames.size(0);
}

} // namespace

BatchFile::BatchFile(const std::filesystem::path& path, bool reads_bytes)
    : file_(Safetensors::open(path)), reads_bytes_(reads_bytes),
      frames_(tensor_named(reads_bytes ? "source_bytes" : "frames")) {
  if (reads_bytes) {
    if (frames_.dim() != 1 || frames_.scalar_type() != at::kByte)
      fail("source_bytes", fmt::format("expected uint8 of one dimension, got {} {}",
                                       at::toString(frames_.scalar_type()), shape_text(frames_.sizes())));
  } else if (frames_.dim() != 4 || frames_.size(1) != 3)
    fail("frames", "expected [all frames, 3, height, width], got " + shape_text(frames_.sizes()));
}

at::Tensor BatchFile::tensor_named(const std::string& name) const {
  const TensorView* found = file_.find(name);
  if (!found) fail(name, "there is no such tensor");
  return tensor_over(*found);
}

std::vector<Sample> BatchFile::samples(Texts texts, int64_t vocabulary) const {
  const std::string name = reads_bytes_ ? "source_lengths" : "frame_counts";
  const char* what = reads_bytes_ ? "bytes" : "frames";
  const auto counts = integers(name);
  if (counts.empty()) fail(name, "there is no sample");
  std::vector<Sample> samples(counts.size());
  int64_t begin = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] < 0 || counts[i] > frames_.size(0) - begin) fail(name, sum_text(frames_.size(0), what));
    if (counts[i] > 0) {
      const at::Tensor own = frames_.narrow(0, begin, counts[i]);
      samples[i].copies = reads_bytes_ || file_.find("image_grids") ? 1 : copies_in(own);
      samples[i].frames = own.narrow(0, 0, counts[i] / samples[i].copies);
    }
    begin += counts[i];
  }
  if (begin != frames_.size(0)) fail(name, sum_text(frames_.size(0), what));
  if (file_.find("image_grids")) read_grids(samples);
  if (texts == Texts::pairs) {
    read_texts("chosen_", true, samples);
    read_texts("rejected_", true, samples);
  } else {
    read_texts("", texts == Texts::labelled, samples);
  }
  check_tokens(samples, vocabulary);
  return samples;
}

std::vector<int64_t> BatchFile::integers(const std::string& name) const {
  const at::Tensor tensor = tensor_named(name);
  if (tensor.dim() != 1 || at::isFloatingType(tensor.scalar_type()))
    fail(name, fmt::format("expected integers of one dimension, got {} {}", at::toString(tensor.scalar_type()),
                           shape_text(tensor.sizes())));
  const at::Tensor wide = tensor.to(at::kLong).contiguous();
  return {wide.data_ptr<int64_t>(), wide.data_ptr<int64_t>() + wide.numel()};
}

void BatchFile::read_grids(std::vector<Sample>& samples) const {
  const at::Tensor grids = tensor_named("image_grids");
  const bool has_videos = grids.dim() == 2 && grids.size(1) == 4;
  if (grids.dim() != 2 || (grids.size(1) != 2 && !has_videos) || at::isFloatingType(grids.scalar_type()))
    fail("image_grids", fmt::format("expected integers [images, 2], or [images, 4] with videos, got {} {}",
                                    at::toString(grids.scalar_type()), shape_text(grids.sizes())));
  at::Tensor seconds;
  if (has_videos) {
    seconds = tensor_named("step_seconds");
    if (seconds.dim() != 1 || seconds.size(0) != grids.size(0) || !at::isFloatingType(seconds.scalar_type()))
      fail("step_seconds", fmt::format("expected numbers [{}], got {} {}", grids.size(0),
                                       at::toString(seconds.scalar_type()), shape_text(seconds.sizes())));
    seconds = seconds.to(at::kDouble).contiguous();
  }
  const at::Tensor sides = grids.to(at::kLong).contiguous();
  const auto counts = integers("image_counts");
  if (counts.size() != samples.size())
    fail("image_counts", fmt::format("has {} numbers for {} samples", counts.size(), samples.size()));
  const int64_t* side = sides.const_data_ptr<int64_t>();
  int64_t begin = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    if (counts[i] < 0 || counts[i] > sides.size(0) - begin) fail("image_counts", sum_text(sides.size(0), "images"));
    const int64_t frames = frames_of(samples[i].frames);
    int64_t squares = 0;
    for (const int64_t end = begin + counts[i]; begin < end; ++begin) {
      ImageGrid grid{*side++, *side++};
      if (has_videos) grid.steps = *side++, grid.step_frames = *side++;
      if (has_videos) grid.step_seconds = seconds.const_data_ptr<double>()[begin];
      for (const int64_t number : {grid.rows, grid.columns, grid.steps, grid.step_frames})
        if (number < 1 || number > frames)
          fail("image_grids",
               fmt::format("an image of {} x {} cells in {} of {} is none of a sample of {} frames", grid.rows,
                           grid.columns, counted(grid.steps, "step"), counted(grid.step_frames, "frame"), frames));
      if (!(grid.step_seconds >= 0 && grid.step_seconds <= 1e6))
        fail("step_seconds", fmt::format("a step of {} seconds", grid.step_seconds));
      samples[i].grids.push_back(grid);
      squares += grid.squares();
    }
    if (squares != frames) fail("image_grids", fmt::format("sample {} has {} frames and {} cells", i, frames, squares));
  }
  if (begin != sides.size(0)) fail("image_counts", sum_text(sides.size(0), "images"));
}

void BatchFile::read_texts(const std::string& side, bool labelled, std::vector<Sample>& samples) const {
  const auto lengths = integers(side + "text_lengths"), ids = integers(side + "input_ids");
  const auto count = static_cast<int64_t>(ids.size());
  at::Tensor mask = at::zeros({count}, at::kBool);
  if (labelled) {
    const at::Tensor given = tensor_named(side + "loss_mask");
    mask = given.ne(0).contiguous();
    if (!given.eq(mask).all().item<bool>()) fail(side + "loss_mask", "holds what is neither 0 nor 1");
  }
  if (lengths.size() != samples.size())
    fail(side + "text_lengths", fmt::format("has {} texts for {} samples", lengths.size(), samples.size()));
  if (mask.numel() != count)
    fail(side + "loss_mask", fmt::format("has {} elements for {} tokens", mask.numel(), count));
  size_t begin = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    const auto length = static_cast<size_t>(lengths[i]);
    if (lengths[i] < 0 || length > ids.size() - begin) fail(side + "text_lengths", sum_text(count, "tokens"));
    Text& text = samples[i].texts.emplace_back();
    for (size_t at = begin; at < begin + length; ++at) {
      text.tokens.push_back(ids[at]);
      text.is_label.push_back(mask.data_ptr<bool>()[at]);
    }
    begin += length;
  }
  if (begin != ids.size()) fail(side + "text_lengths", sum_text(count, "tokens"));
}

void BatchFile::check_tokens(const std::vector<Sample>& samples, int64_t vocabulary) const {
  for (size_t i = 0; i < samples.size(); ++i)
    for (const Text& text : samples[i].texts)
      for (const int64_t token : text.tokens)
        if (!is_placeholder(token) && (token < 0 || token >= vocabulary))
          throw Error(ErrorKind::data, "sample {}: there is no token {} in a vocabulary of {}", i, token, vocabulary)
              .at(file_.path().string());
}

void BatchFile::fail(const std::string& name, const std::string& what) const {
  throw Error(ErrorKind::data, "{}: {}", name, what).at(file_.path().string()).advise(how_it_is(reads_bytes_));
}

} // namespace fvlm::model
