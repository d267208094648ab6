#include "data/preprocess.h"

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/parallel.h"
#include "data/preprocess_manifest.h"
#include "data/samples/npy.h"
#include "data/samples/parts.h"
#include "data/samples/sample_reader.h"
#include "data/shards/shard_writer.h"
#include "data/shards/tar_header.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>

namespace fvlm {
namespace {

namespace fs = std::filesystem;

constexpr int64_t max_bytes_in_flight = int64_t{512} << 20; // bytes of pixels
constexpr int64_t max_samples_in_flight = 256;              // samples
constexpr size_t max_reasons = 20;

template <class Entry>
void append_list(std::string& out, const std::vector<Entry>& entries) {
  if (!out.empty()) out.push_back(',');
  fmt::format_to(std::back_inserter(out), "[{}]", fmt::join(entries, ","));
}

// The tokens are not truncated here: max_text_tokens is applied when they are read.
std::string json_of(const Sample& sample) {
  if (!sample.dropped.empty()) {
    nlohmann::json dropped{{dropped_key, sample.dropped}};
    if (sample.lacks_answer) dropped[lacks_answer_key] = true;
    if (sample.exceeds_frames) dropped[exceeds_frames_key] = true;
    return dropped.dump();
  }
  bool several = sample.texts.size() > 1 || sample.correct_choice;
  std::string ids, mask;
  for (const SampleText& text : sample.texts) {
    append_list(ids, text.ids);
    append_list(mask, text.answer_mask);
  }
  std::string out = several ? fmt::format(R"({{"token_ids":[{}],"loss_mask":[{}])", ids, mask)
                            : fmt::format(R"({{"token_ids":{},"loss_mask":{})", ids, mask);
  if (sample.correct_choice) out += fmt::format(R"(,"answer":{})", *sample.correct_choice);
  if (sample.is_desirable) out += fmt::format(R"(,"label":{})", *sample.is_desirable);
  if (!sample.answers.empty()) out += fmt::format(R"(,"answers":{})", nlohmann::json(sample.answers).dump());
  if (sample.has_short_answer) out += fmt::format(R"(,"{}":true)", short_answer_key);
  std::vector<std::string> grids;
  for (const ImageGrid& image : sample.grids())
    grids.push_back(image.is_video() ? fmt::format("[{},{},{},{},{}]", image.rows, image.columns, image.steps,
                                                   image.step_frames, image.step_seconds)
                                     : fmt::format("[{},{}]", image.rows, image.columns));
  if (!grids.empty()) out += fmt::format(R"(,"image_grids":[{}])", fmt::join(grids, ","));
  return out + fmt::format(R"(,"source":{},"frame_count":{}}})", nlohmann::json(sample.source).dump(), sample.frames);
}

// The files of one sample, ready to be written to the shard.
struct PreparedSample {
  std::string key, json, array;
  std::string broken; // the reason; empty for a good sample
};

class Preprocess {
 public:
  Preprocess(const PreprocessInput& input, const VideoDecoder* video, const PreprocessOptions& options)
      : mix_(input.mix), tokenizer_(Tokenizer::from_file(input.tokenizer)), image_size_(input.image_size),
        options_(options), threads_(threads_or_cores(options.threads)),
        reader_(mix_, tokenizer_, FramePreparation(image_size_, input.processor), video, input.visual_rows) {
    if (input.visual_rows.max_bytes > 0)
      throw Error(ErrorKind::usage, "the model reads the bytes of texts, and there is nothing to preprocess");
    mix_.max_text_tokens = std::numeric_limits<int64_t>::max();
    for (const auto& source : mix_.sources)
      sets_.push_back(std::make_unique<ShardSet>(source.patterns(), with_root(options.shards, source)));
  }

  int64_t all() const {
    int64_t sum = 0;
    for (const auto& set : sets_) sum += set->size();
    return sum;
  }

  PreprocessManifest write(const fs::path& folder, const std::function<void(int64_t)>& progress) {
    PreprocessManifest manifest;
    for (size_t source = 0; source < sets_.size(); ++source) {
      make_folders(folder / fmt::format("{}", source));
      auto& shards = manifest.sources.emplace_back();
      for (int64_t number = 0; number < sets_[source]->shards(); ++number) {
        if (sets_[source]->samples(number) == 0) continue;
        std::string file = fmt::format("{}/{:06}.tar", source, number);
        shards.push_back(write_shard(source, number, folder, file, progress));
      }
    }
    if (done_.broken == done_.samples) fail_too_many_broken(); // also where they are too few for the limits
    manifest.broken = done_.broken;
    return manifest;
  }

  const Preprocessed& done() const { return done_; }

 private:
  PreprocessedShard write_shard(size_t source, int64_t number, const fs::path& folder, const std::string& file,
                                const std::function<void(int64_t)>& progress) {
    auto shard = sets_[source]->shard(number);
    ShardWriter writer(folder / file);
    int64_t frames = std::max(mix_.max_frames, mix_.replicate_image_frames);
    int64_t at_once = std::clamp<int64_t>(max_bytes_in_flight / (frames * image_size_ * image_size_ * 3), threads_,
                                          max_samples_in_flight);
    std::vector<PreparedSample> prepared;
    for (int64_t first = 0; first < shard->size(); first += at_once) {
      prepared.assign(static_cast<size_t>(std::min(at_once, shard->size() - first)), PreparedSample{});
      in_parallel(std::ssize(prepared), threads_,
                  [&](int64_t i) { prepared[static_cast<size_t>(i)] = make(*shard, first + i, mix_.sources[source]); });
      for (const PreparedSample& sample : prepared) add(sample, writer);
      check_broken();
      progress(done_.samples);
    }
    writer.commit();
    done_.bytes += writer.size();
    return {file, writer.size(), shard->size()};
  }

  PreparedSample make(const Shard& shard, int64_t number, const plan::Source& source) const {
    ShardSample members = shard.sample(number);
    PreparedSample prepared{.key = members.key};
    std::string wrong; // with the name of a file, which may be no UTF-8
    plain_name(members.key, wrong);
    if (!wrong.empty()) prepared.key = fmt::format("%{:08}", number); // no other key, where folder.cpp escapes '%'
    try {
      Sample sample = reader_.measure(shard, members, source);
      if (!sample.inputs.empty()) broken("it is a query with what it is to find, which only the shards themselves say");
      prepared.json = json_of(sample);
      if (!sample.dropped.empty()) return prepared;
      std::string pixels;
      int64_t frames = 0;
      reader_.each_frame(shard, sample, [&](std::span<const uint8_t> frame) {
        pixels.append(reinterpret_cast<const char*>(frame.data()), frame.size());
        ++frames;
      });
      if (frames > 0) prepared.array = npy_head(frames, image_size_, image_size_) + pixels;
    } catch (const ReadError&) {
      throw;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::data) throw;
      prepared.broken = error.text();
      prepared.json =
          nlohmann::json{{broken_key, error.what()}}.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    }
    return prepared;
  }

  void add(const PreparedSample& sample, ShardWriter& writer) {
    writer.add(sample.key + ".json", sample.json);
    if (!sample.array.empty()) writer.add(sample.key + ".npy", sample.array);
    ++done_.samples;
    if (sample.broken.empty()) return;
    ++done_.broken;
    if (done_.reasons.size() < max_reasons) done_.reasons.push_back(sample.broken);
  }

  void check_broken() const {
    if (options_.quarantine.exceeded_by(done_.broken, done_.samples)) fail_too_many_broken();
  }

  [[noreturn]] void fail_too_many_broken() const {
    throw Error(ErrorKind::data, "{} of the first {} samples are broken. The first of them:\n  {}", done_.broken,
                done_.samples, fmt::join(done_.reasons, "\n  "))
        .advise("repair them, or raise loader.quarantine in the recipe");
  }

  plan::Mix mix_;
  Tokenizer tokenizer_;
  int64_t image_size_;
  const PreprocessOptions& options_;
  int threads_;
  SampleReader reader_;
  std::vector<std::unique_ptr<ShardSet>> sets_;
  Preprocessed done_;
};

// Removes what preprocess wrote and nothing else.
void remove_old(const fs::path& folder) {
  for (size_t source = 0; fs::is_directory(folder / fmt::format("{}", source)); ++source)
    fs::remove_all(folder / fmt::format("{}", source));
  remove_manifest(folder);
  std::error_code not_empty;
  fs::remove(folder, not_empty);
}

} // namespace

Preprocessed preprocess(const fs::path& folder, const PreprocessInput& input, const VideoDecoder* video,
                        const PreprocessOptions& options,
                        const std::function<void(int64_t done, int64_t all)>& progress) {
  fs::path out = folder.has_filename() ? folder : folder.parent_path(); // "cache/align/"
  auto from = made_from(input);
  Preprocess work(input, video, options);
  if (has_manifest(out)) remove_old(out);
  AtomicFolder made(out);
  int64_t all = work.all();
  auto manifest = work.write(made.temporary_path(), [&](int64_t done) { progress(done, all); });
  if (made_from(input) != from)
    throw Error(ErrorKind::data, "the shards or the tokenizer changed while they were read")
        .at(out.string())
        .advise("run it again when they are complete");
  write_manifest(made.temporary_path(), from, manifest);
  made.commit();
  return work.done();
}

} // namespace fvlm
