#include "model/pack.h"

#include "base/error.h"
#include "base/text.h"
#include "model/bidirectional_blocks.h"
#include "model/connector/connector.h"
#include "model/encoder/encoder.h"
#include "recipe/placeholders.h"

#include <ATen/ops/concat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>

namespace fvlm::model {
namespace {

bool is_text(const at::Tensor& frames) {
  return frames.defined() && frames.dim() == 1;
}

bool is_label(const Text& text, size_t position) {
  return position > 0 && text.is_label[position] && !is_placeholder(text.tokens[position]);
}

int64_t labels_of(const Text& text) {
  int64_t count = 0;
  for (size_t i = 1; i < text.tokens.size(); ++i) count += is_label(text, i);
  return count;
}

void require_fit(const char* what, int64_t wanted, int64_t there) {
  if (wanted > there)
    throw Error(ErrorKind::data, "the samples need {} {}, the pack has {}", wanted, what, there)
        .advise("pack fewer samples together, or make the budget larger");
}

at::Tensor tensor_of(const std::vector<int32_t>& values, at::Device device) {
  return at::tensor(values, at::kInt).to(device);
}

at::Tensor tensor_of(const std::vector<int64_t>& values, at::Device device) {
  return at::tensor(values, at::kLong).to(device);
}

// The maps of a pack, filled sample by sample.
struct Maps {
  explicit Maps(const FrameReader& reader) : rows_per_frame(reader.rows_per_frame), position_rules(reader.positions) {}

  const int64_t rows_per_frame;
  const RowPositionRules position_rules;
  std::vector<int64_t> video_lengths, copies, frame_source, visual_source, visual_rows, text_lengths;
  std::vector<int64_t> mean_rows;
  std::vector<float> mean_shares;
  std::vector<int64_t> tokens, text_rows, label_rows, targets, label_sequences, labels_per_text;
  std::vector<int64_t> prompt_lengths;                       // of each text: its rows before the first label
  std::array<std::vector<int32_t>, most_row_axes> positions; // of the decoder's rows, on each axis

  int64_t all_frames = 0;
  bool has_numbered = false; // placeholders

  // Whether the decoder reads each visual token once and in order.
  bool is_identity() const {
    if (has_numbered || std::ssize(visual_source) != all_frames * rows_per_frame) return false;
    for (size_t i = 0; i < visual_source.size(); ++i)
      if (visual_source[i] != static_cast<int64_t>(i)) return false;
    return true;
  }

  void add(const Sample& sample) {
    const int64_t first_token = all_frames * rows_per_frame, frames = frames_of(sample);
    all_frames += frames;
    if (frames > 0) video_lengths.push_back(frames);
    for (int64_t frame = 0; frame < frames; frame += sample.copies) {
      frame_source.resize(frame_source.size() + static_cast<size_t>(sample.copies), std::ssize(copies));
      copies.push_back(sample.copies);
    }
    for (const Text& text : sample.texts) {
      const size_t begin = tokens.size(), first_label = targets.size();
      int64_t source = first_token;
      std::vector<int64_t> rows; // tokens and placeholders
      if (placeholders_of(text.tokens) == 0)
        while (source < first_token + frames * rows_per_frame) add_visual_row(source++, rows);
      for (size_t i = 0; i < text.tokens.size(); ++i) {
        if (const int64_t id = text.tokens[i]; is_placeholder(id)) {
          has_numbered = has_numbered || is_numbered_placeholder(id);
          if (is_shrunk_placeholder(id))
            add_mean(ShrunkPatch::of(id).mean(rows_per_frame), first_token, rows);
          else
            add_visual_row(is_numbered_placeholder(id) ? first_token + visual_row_of(id) : source++, rows);
          continue;
        }
        const auto row = static_cast<int64_t>(tokens.size());
        text_rows.push_back(row);
        tokens.push_back(text.tokens[i]);
        rows.push_back(text.tokens[i]);
        if (!is_label(text, i)) continue;
        label_rows.push_back(row - 1);
        targets.push_back(text.tokens[i]);
        label_sequences.push_back(static_cast<int64_t>(text_lengths.size()));
      }
      const RowPositions placed = positions_of(rows, sample.grids, position_rules);
      for (const RowPosition& position : placed.rows) add_position(position);
      text_lengths.push_back(static_cast<int64_t>(tokens.size() - begin));
      const bool has_label = targets.size() > first_label;
      prompt_lengths.push_back(has_label ? label_rows[first_label] + 1 - static_cast<int64_t>(begin)
                                         : text_lengths.back());
      labels_per_text.push_back(static_cast<int64_t>(targets.size() - first_label));
    }
  }

  // Which visual tokens the decoder reads, where all frames together have so many.
  std::vector<int64_t> sources(int64_t all_tokens) const {
    std::vector<int64_t> out = visual_source;
    for (int64_t& source : out)
      if (source < 0) source = all_tokens - 1 - source;
    return out;
  }

 private:
  void add_mean(const ShrunkPatch::Mean& mean, int64_t first_token, std::vector<int64_t>& rows) {
    add_visual_row(-1 - std::ssize(mean_shares) / std::ssize(mean.shares), rows); // behind all others, see sources()
    for (const int64_t row : mean.rows) mean_rows.push_back(first_token + row);
    mean_shares.insert(mean_shares.end(), mean.shares.begin(), mean.shares.end());
  }

  void add_visual_row(int64_t source, std::vector<int64_t>& rows) {
    visual_source.push_back(source);
    visual_rows.push_back(static_cast<int64_t>(tokens.size()));
    tokens.push_back(0);
    rows.push_back(visual_placeholder);
  }

  void add_position(const RowPosition& position) {
    for (size_t axis = 0; axis < positions.size(); ++axis) positions[axis].push_back(position[axis]);
  }
};

at::Tensor frames_in_slots(const std::vector<Sample>& samples, int64_t slots) {
  std::vector<at::Tensor> frames;
  for (const Sample& sample : samples) {
    if (!sample.frames.defined()) continue;
    slots -= frames_of(sample.frames);
    frames.push_back(sample.frames.to(at::kFloat));
  }
  if (frames.empty()) throw Error(ErrorKind::internal, "a pack with frame slots does not know their size");
  auto shape = frames.front().sizes().vec();
  shape[0] = slots;
  if (slots > 0) frames.push_back(at::zeros(shape, at::kFloat));
  return at::concat(frames);
}

// The bytes of all texts, one after the other, and a segment for each.
void add_bytes(Pack& pack, const std::vector<Sample>& samples, const Capacity& capacity, int64_t longest,
               at::Device device) {
  std::vector<int64_t> lengths;
  at::Tensor bytes = at::zeros({capacity.bytes}, at::kLong);
  int64_t begin = 0;
  for (const Sample& sample : samples) {
    if (!is_text(sample.frames)) continue;
    lengths.push_back(sample.frames.size(0));
    bytes.narrow(0, begin, lengths.back()).copy_(sample.frames);
    begin += lengths.back();
  }
  pack.bytes = bytes.to(device);
  pack.patches = segments_of(lengths, capacity.frames, capacity.bytes, longest, device);
}

// A segment for each image and step of a video, as many as the next power of two has: packs have few shapes, and empty
// segments cost little.
void add_images(Pack& pack, const std::vector<Sample>& samples, const FrameReader& reader, int64_t longest,
                at::Device device) {
  CellLayout layout{{}, pack.encoder_slots, pack.slot_squares > 1 ? pack.square_slots() : 0, device};
  std::vector<int64_t> lengths;
  for (const Sample& sample : samples)
    for (const ImageGrid& image : sample.grids) {
      layout.images.push_back(image);
      lengths.insert(lengths.end(), static_cast<size_t>(image.steps), image.step_cells() * reader.tokens_per_frame);
    }
  const auto segments = static_cast<int64_t>(std::bit_ceil(lengths.size()));
  pack.patches = segments_of(lengths, segments, pack.encoder_slots * reader.tokens_per_frame,
                             longest * reader.tokens_per_frame, device);
  reader.of_cells->add_maps(pack.maps, layout);
}

// As many as fill up what a few pictures of the most patches have, so that packs have few shapes.
void add_means(Pack& pack, Maps& maps, at::Device device) {
  constexpr int64_t step = 4 * 1024;
  const auto padded = static_cast<size_t>((std::ssize(maps.mean_rows) + step - 1) / step * step);
  maps.mean_rows.resize(padded, 0);
  maps.mean_shares.resize(padded, 0);
  pack.mean_rows = tensor_of(maps.mean_rows, device).view({-1, 4});
  pack.mean_shares = at::tensor(maps.mean_shares, at::kFloat).to(device).view({-1, 4});
}

// The last row that each attends to, its own or one behind it.
std::vector<int32_t> last_rows(const Maps& maps, BidirectionalRows bidirectional, int64_t rows) {
  std::vector<int32_t> last(static_cast<size_t>(rows));
  std::iota(last.begin(), last.end(), 0);
  std::vector<bool> is_visual(static_cast<size_t>(rows));
  for (const int64_t row : maps.visual_rows) is_visual[static_cast<size_t>(row)] = true;
  size_t begin = 0;
  for (size_t text = 0; text < maps.text_lengths.size(); ++text) {
    const size_t end = begin + static_cast<size_t>(maps.text_lengths[text]),
                 answer = begin + static_cast<size_t>(maps.prompt_lengths[text]);
    for (size_t row = end; row-- > begin + 1;)
      if (bidirectional == BidirectionalRows::prompt ? row < answer : is_visual[row] && is_visual[row - 1])
        last[row - 1] = last[row];
    begin = end;
  }
  return last;
}

// The first row that each attends to whatever windows there are: those of a prompt to all of it.
at::Tensor first_rows(const Maps& maps, int64_t rows, at::Device device) {
  std::vector<int32_t> first(static_cast<size_t>(rows));
  std::iota(first.begin(), first.end(), 0);
  int64_t begin = 0;
  for (size_t text = 0; text < maps.text_lengths.size(); ++text) {
    std::fill_n(first.begin() + begin, maps.prompt_lengths[text], static_cast<int32_t>(begin));
    begin += maps.text_lengths[text];
  }
  return tensor_of(first, device);
}

// Which rows each attends to, where that is more than those before it.
void add_ranges(Pack& pack, const Maps& maps, const Capacity& capacity, const FrameReader& reader, at::Device device) {
  const BidirectionalRows bidirectional = reader.connector.bidirectional_rows();
  const bool by_prompt = bidirectional == BidirectionalRows::prompt;
  if (bidirectional == BidirectionalRows::none || (!by_prompt && capacity.frames == 0)) return;
  const std::vector<int32_t> last = last_rows(maps, bidirectional, capacity.rows);
  const int64_t usual = by_prompt ? capacity.rows : capacity.frames * reader.rows_per_frame;
  pack.texts.last = tensor_of(last, device);
  pack.texts.blocks = bidirectional_blocks(last, usual, device);
  if (by_prompt) pack.texts.first = first_rows(maps, capacity.rows, device);
}

void require_grids(const Sample& sample, const FrameReader& reader) {
  if (!reader.of_cells) {
    if (!sample.grids.empty())
      throw Error(ErrorKind::data, "its frames are cells of images, and the encoder reads whole images");
    return;
  }
  int64_t squares = 0;
  for (const ImageGrid& image : sample.grids) {
    if (image.rows < 1 || image.columns < 1 || image.steps < 1)
      throw Error(ErrorKind::data, "it has an image of {} x {} cells in {} steps", image.rows, image.columns,
                  image.steps);
    if (const int64_t own = reader.of_cells->step_frames(); image.step_frames != 1 && image.step_frames != own)
      throw Error(ErrorKind::data, "it has a video with {} in each step, of which the encoder reads {}",
                  counted(image.step_frames, "frame"), own);
    squares += image.squares();
  }
  if (sample.copies != 1 || squares != frames_of(sample.frames))
    throw Error(ErrorKind::data, "the encoder reads cells of images, and it has {} for {} of {} in all",
                counted(frames_of(sample.frames) * sample.copies, "frame"), counted(std::ssize(sample.grids), "image"),
                counted(squares, "cell"))
        .advise("give the rows and columns of each image, whose cells are the frames");
}

void check(const Sample& sample, size_t index, const FrameReader& reader) {
  const auto where = fmt::format("sample {}", index);
  for (const auto& [tokens, is_label] : sample.texts)
    if (is_label.size() != tokens.size())
      throw Error(ErrorKind::data, "{} tokens, but a loss mask of {}", tokens.size(), is_label.size()).at(where);
  if (sample.texts.empty()) throw Error(ErrorKind::data, "there is no text").at(where);
  try {
    require_readable(sample.frames, reader);
    require_grids(sample, reader);
    for (const Text& text : sample.texts) require_placeholders(text.tokens, frames_of(sample), reader.rows_per_frame);
  } catch (const Error& error) {
    throw Error(error.kind(), error.what()).at(where).advise(error.advice());
  }
}

} // namespace

int64_t frames_of(const at::Tensor& frames) {
  if (!frames.defined()) return 0;
  return is_text(frames) ? 1 : frames.size(0);
}

int64_t frames_of(const Sample& sample) {
  if (sample.grids.empty()) return frames_of(sample.frames) * sample.copies;
  int64_t cells = 0;
  for (const ImageGrid& image : sample.grids) cells += image.cells();
  return cells;
}

at::Tensor encoder_input(const at::Tensor& frames, const at::TensorOptions& options) {
  return frames.defined() ? frames.to(is_text(frames) ? options.dtype(at::kLong) : options) : at::Tensor();
}

int64_t placeholders_of(const std::vector<int64_t>& tokens) {
  return Placeholders::in(tokens).count;
}

int64_t rows_of(const std::vector<int64_t>& tokens, int64_t frames, int64_t rows_per_frame) {
  return std::ssize(tokens) + (placeholders_of(tokens) > 0 ? 0 : frames * rows_per_frame);
}

void require_readable(const at::Tensor& frames, const FrameReader& reader) {
  if (frames_of(frames) == 0) return;
  if (is_text(frames) != reader.reads_bytes)
    throw Error(ErrorKind::data, reader.reads_bytes
                                     ? "it has images, and the encoder reads texts as bytes"
                                     : "it has a text for an encoder of bytes, and the encoder reads images");
  if (is_text(frames) && (frames.size(0) < 1 || frames.size(0) > reader.tokens_per_frame))
    throw Error(ErrorKind::data, "its text for the encoder has {} bytes, and 1 to {} were expected", frames.size(0),
                reader.tokens_per_frame);
}

void require_placeholders(const std::vector<int64_t>& tokens, int64_t frames, int64_t rows_per_frame) {
  const Placeholders found = Placeholders::in(tokens);
  if (found.fit(frames, rows_per_frame)) return;
  if (found.shrunk_frames > frames)
    throw Error(ErrorKind::data, "a text has placeholders of a shrunk picture of {} frames, and its sample has {}",
                found.shrunk_frames, counted(frames, "frame"))
        .advise("write the token_ids anew for this model");
  if (found.numbered > 0)
    throw Error(ErrorKind::data, "a text has {} for visual rows, {} of them numbered up to {}, and its {} become {}",
                counted(found.count, "placeholder"), found.numbered, found.largest, counted(frames, "frame"),
                counted(frames * rows_per_frame, "row"))
        .advise("number all placeholders of a text or none, from {}, the first row's, downwards",
                first_numbered_placeholder);
  throw Error(ErrorKind::data, "a text has {} for visual rows, and its {} become {}, {} each",
              counted(found.count, "placeholder"), counted(frames, "frame"), counted(frames * rows_per_frame, "row"),
              rows_per_frame)
      .advise("put one placeholder, {}, for each row of each frame, or none: then all rows stand before it",
              visual_placeholder);
}

ops::Value visual_rows(ops::Tape& tape, const ops::Value& visual, const Pack& pack) {
  const ops::Value all =
      pack.mean_rows.defined() ? ops::append_means(tape, visual, pack.mean_rows, pack.mean_shares) : visual;
  return pack.visual_source.defined() ? ops::gather_rows(tape, all, pack.visual_source) : all;
}

std::vector<at::Tensor> visual_by_sample(const at::Tensor& visual, const std::vector<Sample>& samples,
                                         int64_t rows_per_frame) {
  std::vector<at::Tensor> all(samples.size());
  int64_t begin = 0;
  for (size_t i = 0; i < samples.size(); ++i)
    if (const int64_t rows = frames_of(samples[i]) * rows_per_frame; rows > 0)
      all[i] = visual.narrow(0, std::exchange(begin, begin + rows), rows);
  return all;
}

ops::Segments segments_of(const std::vector<int64_t>& lengths, int64_t capacity, int64_t rows, int64_t longest,
                          at::Device device) {
  std::vector<int32_t> starts{0}, positions;
  for (int64_t length : lengths) {
    starts.push_back(starts.back() + static_cast<int32_t>(length));
    for (int64_t i = 0; i < length; ++i) positions.push_back(static_cast<int32_t>(i));
  }
  starts.resize(static_cast<size_t>(capacity) + 1, starts.back());
  positions.resize(static_cast<size_t>(rows), 0);
  const bool even = starts.back() == rows && rows == std::ssize(lengths) * longest;
  return {tensor_of(starts, device), tensor_of(positions, device), longest, even};
}

Capacity Capacity::of(const std::vector<Sample>& samples, int64_t rows_per_frame) {
  Capacity sum;
  for (const Sample& sample : samples) {
    const int64_t frames = frames_of(sample);
    sum.frames += frames;
    sum.encoder_frames += frames_of(sample.frames);
    sum.longest_video = std::max(sum.longest_video, frames);
    if (is_text(sample.frames)) sum.bytes += sample.frames.size(0);
    for (const Text& text : sample.texts) {
      const int64_t length = rows_of(text.tokens, frames, rows_per_frame);
      sum.rows += length;
      sum.longest_sequence = std::max(sum.longest_sequence, length);
      sum.labels += labels_of(text);
      ++sum.sequences;
    }
  }
  return sum;
}

std::vector<ops::Segments*> Pack::segments() {
  std::vector<ops::Segments*> all{&patches, &texts};
  for (auto& [name, own] : maps.segments) all.push_back(&own);
  return all;
}

std::vector<at::Tensor*> Pack::tensors() {
  std::vector<at::Tensor*> all{&frames, &bytes, &frame_source, &visual_source, &mean_rows, &mean_shares};
  for (auto& [name, own] : maps.tensors) all.push_back(&own);
  for (ops::Segments* each : segments())
    all.insert(all.end(), {&each->cu_seqlens, &each->positions, &each->ring, &each->last, &each->first,
                           &each->blocks.rows, &each->blocks.keys, &each->blocks.cu_seqlens_q,
                           &each->blocks.cu_seqlens_kv, &each->blocks.place, &each->blocks.key_place});
  all.insert(all.end(), {&sequence.tokens, &sequence.is_text, &sequence.visual_rows});
  all.insert(all.end(), {&labels.rows, &labels.targets, &labels.sequences, &labels.weights});
  return all;
}

std::vector<int64_t> Pack::shape() {
  std::vector<int64_t> shape;
  for (const ops::Segments* each : segments())
    shape.insert(shape.end(), {each->max_length, each->uniform_lengths, each->blocks.max_length});
  for (const at::Tensor* tensor : tensors()) append_shape(shape, *tensor);
  return shape;
}

at::Tensor last_rows(const Pack& pack) {
  return pack.texts.cu_seqlens.slice(0, 1).to(at::kLong).sub(1);
}

void append_shape(std::vector<int64_t>& to, const at::Tensor& tensor) {
  to.push_back(tensor.defined() ? tensor.dim() : -1);
  if (tensor.defined()) to.insert(to.end(), tensor.sizes().begin(), tensor.sizes().end());
}

Pack make_pack(const std::vector<Sample>& samples, const Capacity& capacity, const FrameReader& reader,
               at::TensorOptions options, Frames frames) {
  for (size_t i = 0; i < samples.size(); ++i) check(samples[i], i, reader);
  const Capacity used = Capacity::of(samples, reader.rows_per_frame);
  require_fit("frame slots", used.frames, capacity.frames);
  require_fit("rows", used.rows, capacity.rows);
  require_fit("sequences", used.sequences, capacity.sequences);
  require_fit("labels", used.labels, capacity.labels);
  require_fit("rows in one sequence", used.longest_sequence, capacity.longest_sequence);
  require_fit("frames in one sample", used.longest_video, capacity.longest_video);
  require_fit("bytes of texts", used.bytes, capacity.bytes);

  Maps maps(reader);
  for (const Sample& sample : samples) maps.add(sample);
  const at::Device device = options.device();
  const auto filled = [&](std::vector<int64_t> values, int64_t size, int64_t padding) {
    values.resize(static_cast<size_t>(size), padding);
    return tensor_of(values, device);
  };

  Pack pack;
  pack.frame_slots = capacity.frames;
  pack.frames_used = used.frames;
  const bool repeats = used.encoder_frames < used.frames;
  pack.encoder_slots =
      repeats ? std::clamp(capacity.encoder_frames, used.encoder_frames, capacity.frames) : capacity.frames;
  if (used.encoder_frames > used.frames) pack.slot_squares = reader.of_cells->step_frames();
  pack.text_rows = maps.text_rows;
  pack.labels_per_text = maps.labels_per_text;
  if (capacity.frames > 0) {
    const int64_t patches = reader.tokens_per_frame;
    if (reader.reads_bytes) {
      add_bytes(pack, samples, capacity, patches, device);
    } else {
      if (frames == Frames::copied) pack.frames = frames_in_slots(samples, pack.square_slots()).to(device);
      if (reader.of_cells) {
        add_images(pack, samples, reader, capacity.longest_video, device);
      } else {
        const std::vector<int64_t> many(static_cast<size_t>(used.encoder_frames), patches);
        pack.patches = segments_of(many, pack.encoder_slots, pack.encoder_slots * patches, patches, device);
      }
    }
    if (repeats) pack.frame_source = filled(maps.frame_source, capacity.frames, pack.encoder_slots - 1);
    reader.connector.add_maps(pack.maps, {maps.video_lengths, used.frames, capacity.frames, capacity.sequences,
                                          capacity.longest_video, patches, maps.copies, pack.encoder_slots, device});
    const bool is_identity = maps.is_identity();
    const int64_t all_rows = capacity.frames * reader.rows_per_frame;
    int64_t visual_rows = is_identity ? all_rows : std::ssize(maps.visual_rows);
    // They are another number in every pack; padded, packs of the same capacity have the same shape.
    if (!is_identity) visual_rows = (visual_rows + all_rows - 1) / all_rows * all_rows;
    if (!is_identity) pack.visual_source = filled(maps.sources(all_rows), visual_rows, 0);
    if (!maps.mean_rows.empty()) add_means(pack, maps, options.device());
    pack.sequence.visual_rows = filled(maps.visual_rows, visual_rows, capacity.rows);
  }
  pack.sequence.tokens = filled(maps.tokens, capacity.rows, 0);
  pack.sequence.is_text =
      at::zeros({capacity.rows, 1}, options.dtype(at::kFloat)).index_fill(0, tensor_of(maps.text_rows, device), 1);
  pack.texts = segments_of(maps.text_lengths, capacity.sequences, capacity.rows, capacity.longest_sequence, device);
  if (reader.positions.axes != RowAxes::none && capacity.frames > 0) {
    std::vector<at::Tensor> axes;
    for (std::vector<int32_t>& axis : maps.positions) {
      axis.resize(static_cast<size_t>(capacity.rows), 0);
      axes.push_back(tensor_of(axis, device));
    }
    pack.texts.positions = at::stack(axes);
  }

  add_ranges(pack, maps, capacity, reader, device);

  const auto count = static_cast<int64_t>(maps.targets.size());
  std::vector<float> weights(maps.targets.size(), count > 0 ? 1.0f / static_cast<float>(count) : 0.0f);
  weights.resize(static_cast<size_t>(capacity.labels), 0);
  pack.labels = {filled(maps.label_rows, capacity.labels, 0), filled(maps.targets, capacity.labels, -1),
                 filled(maps.label_sequences, capacity.labels, capacity.sequences - 1),
                 at::tensor(weights, at::kFloat).to(device)};
  return pack;
}

} // namespace fvlm::model
