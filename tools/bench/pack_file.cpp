#include "bench/pack_file.h"

#include "base/error.h"
#include "data/stream/frame_pool.h"
#include "feed/model_samples.h"
#include "model/batch_file.h"
#include "model/loading.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <cstring>

namespace fvlm::bench {

PackOfFile read_pack(const std::filesystem::path& file, int64_t vocabulary) {
  const model::BatchFile batch(file, false);
  const int64_t height = batch.frames().size(2), width = batch.frames().size(3);
  if (height != width)
    throw Error(ErrorKind::data, "frames of {} x {}: training has square ones", height, width).at(file.string());
  PackOfFile read;
  read.image_size = height;
  HostPack& host = read.pack.host;
  const auto samples = batch.samples(model::BatchFile::Texts::labelled, vocabulary);
  for (const model::Sample& of_file : samples) {
    auto sample = std::make_shared<Sample>();
    sample->frames = model::frames_of(of_file);
    sample->copies = of_file.copies;
    for (const ImageGrid& image : of_file.grids)
      sample->media.tiles.push_back({.rows = image.rows, .columns = image.columns, .is_of_cells = true});
    for (const model::Text& of_text : of_file.texts) {
      SampleText& text = sample->texts.emplace_back();
      for (const int64_t token : of_text.tokens) text.ids.push_back(static_cast<TokenId>(token));
      text.answer_mask.assign(of_text.is_label.begin(), of_text.is_label.end());
    }
    host.samples.push_back({std::ssize(host.samples), sample, host.frame_count});
    host.frame_count += sample->distinct_frames();
    read.pack.samples.push_back(std::move(sample));
  }
  const int64_t elements = 3 * read.image_size * read.image_size;
  host.buffer = allocate_host(static_cast<size_t>(host.frame_count * elements) * sizeof(float));
  auto* values = reinterpret_cast<float*>(host.buffer.get());
  host.frames = {values, static_cast<size_t>(host.frame_count * elements)};
  for (const model::Sample& of_file : samples) {
    if (!of_file.frames.defined()) continue;
    const at::Tensor frames = of_file.frames.to(at::kFloat).contiguous();
    std::memcpy(values, frames.const_data_ptr(), frames.nbytes());
    values += frames.numel();
  }
  return read;
}

namespace {

void add_grids(const train::SyntheticPack& pack, std::map<std::string, at::Tensor>& batch) {
  std::vector<int64_t> sides, counts;
  for (const auto& sample : pack.samples) {
    const std::vector<ImageGrid> grids = sample->grids();
    for (const ImageGrid& image : grids) sides.insert(sides.end(), {image.rows, image.columns});
    counts.push_back(std::ssize(grids));
  }
  if (sides.empty()) return;
  batch["image_grids"] = at::tensor(sides, at::kLong).view({-1, 2});
  batch["image_counts"] = at::tensor(counts, at::kLong);
}

} // namespace

void write_pack(const train::SyntheticPack& pack, int64_t image_size, const std::filesystem::path& file) {
  std::map<std::string, at::Tensor> batch;
  std::vector<int64_t> counts;
  for (const auto& sample : pack.samples) counts.push_back(sample->frames);
  batch["frame_counts"] = at::tensor(counts, at::kLong);
  if (const Sample& first = *pack.samples.front(); !first.bytes.empty()) {
    std::vector<uint8_t> bytes;
    for (const auto& sample : pack.samples) bytes.insert(bytes.end(), sample->bytes.begin(), sample->bytes.end());
    batch["bytes"] = at::tensor(bytes, at::kByte);
  } else {
    int64_t slots = 0;
    for (const auto& sample : pack.samples) slots += sample->frames;
    const at::Tensor frames = at::empty({slots, 3, image_size, image_size}, at::kFloat);
    feed::frames_of(pack.host, image_size, feed::Texts::share_frames, feed::Repeats::apart).copy_to(frames);
    batch["frames"] = frames;
    add_grids(pack, batch);
  }
  const size_t texts = pack.samples.front()->texts.size();
  const auto add = [&](const std::string& side, const auto& text_of) {
    std::vector<int64_t> ids, lengths, mask;
    for (const auto& sample : pack.samples) {
      const SampleText& of_sample = text_of(*sample);
      ids.insert(ids.end(), of_sample.ids.begin(), of_sample.ids.end());
      mask.insert(mask.end(), of_sample.answer_mask.begin(), of_sample.answer_mask.end());
      lengths.push_back(std::ssize(of_sample.ids));
    }
    batch[side + "input_ids"] = at::tensor(ids, at::kLong);
    batch[side + "text_lengths"] = at::tensor(lengths, at::kLong);
    batch[side + "loss_mask"] = at::tensor(mask, at::kLong);
  };
  for (size_t text = 0; text < texts; ++text)
    add(texts == 1  ? ""
        : text == 0 ? "chosen_"
                    : "rejected_",
        [text](const Sample& sample) -> const SampleText& { return sample.texts[text]; });
  if (!pack.samples.front()->teacher_texts.empty())
    add("teacher_", [](const Sample& sample) -> const SampleText& { return sample.teacher_texts.front(); });
  model::write_tensors(file, batch);
}

} // namespace fvlm::bench
