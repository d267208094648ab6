#include "make-shapes/dataset.h"

#include "base/atomic_file.h"
#include "base/file.h"
#include "base/json.h"
#include "data/media/write_image.h"
#include "data/shards/shard_writer.h"
#include "make-shapes/samples.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

namespace fvlm::shapes {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int version = 3; // of what the same options make
constexpr const char* program = "make-shapes";
constexpr const char* manifest_name = "manifest.json";
constexpr uint64_t max_manifest_bytes = 64 << 20;

// Everything that decides the bytes.
Json made_with(const Options& options) {
  Json samples = Json::object();
  for (const Part& part : parts())
    if (auto found = options.samples.find(std::string(part.name)); found != options.samples.end())
      samples[found->first] = found->second;
  return {{"program", program},
          {"version", version},
          {"seed", options.seed},
          {"samples", samples},
          {"frames", options.frames},
          {"width", options.width},
          {"height", options.height},
          {"format", options.format},
          {"quality", options.format == "jpeg" ? options.quality : 0},
          {"ground", options.ground == Ground::plain ? "plain" : "textured"},
          {"shard_size", options.shard_size}};
}

struct ShardPlan {
  const Part* part;
  std::string file; // below the data set's folder
  uint64_t first, end;
};

std::vector<ShardPlan> plan(const Options& options) {
  std::vector<ShardPlan> shards;
  for (const Part& part : parts()) {
    auto wanted = options.samples.find(std::string(part.name));
    if (wanted == options.samples.end()) continue;
    auto total = static_cast<uint64_t>(wanted->second), size = static_cast<uint64_t>(options.shard_size);
    for (uint64_t first = 0; first < total; first += size)
      shards.push_back(
          {&part, fmt::format("{}/{:05}.tar", part.name, first / size), first, std::min(total, first + size)});
  }
  return shards;
}

std::string encode(const Options& options, const Picture& picture, uint64_t grain) {
  Image image = paint(picture, options.width, options.height, options.ground, grain);
  if (options.format == "jpeg") return write_jpeg(image, options.quality);
  return write_png(image, options.ground == Ground::plain ? PngContent::drawing : PngContent::photo);
}

std::string encode_clip(const Options& options, const std::vector<Picture>& frames, uint64_t number) {
  std::vector<Image> images;
  images.reserve(frames.size());
  for (const Picture& frame : frames)
    images.push_back(paint(frame, options.width, options.height, options.ground, number << 8));
  return options.write_clip(images);
}

void add_sample(const Options& options, const Part& part, uint64_t number, ShardWriter& shard) {
  Sample sample = make_sample(part, options.seed, number, options.frames);
  std::string key = fmt::format("{:07}", number);
  if (options.format == "mp4" && !sample.frames.empty()) {
    shard.add(key + ".mp4", encode_clip(options, sample.frames, number));
    sample.frames.clear();
  }
  const char* suffix = options.format == "jpeg" ? "jpg" : "png";
  std::string file; // frames that stand still are encoded once
  for (size_t t = 0; t < sample.frames.size(); ++t) {
    bool same = t > 0 && options.ground == Ground::plain && sample.frames[t] == sample.frames[t - 1];
    if (!same) file = encode(options, sample.frames[t], (number << 8) + t);
    // A frame with a number would be a clip's.
    shard.add(part.still ? fmt::format("{}.{}", key, suffix) : fmt::format("{}.{:03}.{}", key, t, suffix), file);
  }
  shard.add(key + ".json", sample.json);
}

// Shards are made by threads, each shard by one. The first error ends all of them.
class ShardThreads {
 public:
  ShardThreads(const Options& options, std::vector<ShardPlan> shards, fs::path folder)
      : options_(options), shards_(std::move(shards)), folder_(std::move(folder)), sizes_(shards_.size()) {}

  void run(const std::function<void(int64_t)>& progress) {
    std::vector<std::jthread> threads;
    threads.reserve(static_cast<size_t>(options_.threads));
    for (int i = 0; i < options_.threads; ++i) threads.emplace_back([this] { work(); });
    std::unique_lock lock(mutex_);
    while (finished_ < options_.threads) {
      changed_.wait_for(lock, std::chrono::milliseconds(100));
      progress(samples_);
    }
    if (error_) std::rethrow_exception(error_);
  }
  const std::vector<uint64_t>& sizes() const { return sizes_; }

 private:
  void work() {
    try {
      for (size_t i; !failed_ && (i = next_.fetch_add(1)) < shards_.size();) {
        const ShardPlan& planned = shards_[i];
        ShardWriter shard(folder_ / planned.file);
        for (uint64_t number = planned.first; number < planned.end && !failed_; ++number, ++samples_)
          add_sample(options_, *planned.part, number, shard);
        shard.commit();
        sizes_[i] = shard.size();
      }
    } catch (...) {
      std::scoped_lock lock(mutex_);
      if (!failed_.exchange(true)) error_ = std::current_exception();
    }
    std::scoped_lock lock(mutex_);
    ++finished_;
    changed_.notify_all();
  }

  const Options& options_;
  std::vector<ShardPlan> shards_;
  fs::path folder_;
  std::vector<uint64_t> sizes_;
  std::atomic<size_t> next_{0};
  std::atomic<int64_t> samples_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_; // guards what follows
  std::condition_variable changed_;
  int finished_ = 0;
  std::exception_ptr error_;
};

// The manifest at `out`; null where there is none of this program's.
nlohmann::json manifest_at(const fs::path& out) {
  if (!fs::exists(out / manifest_name)) return nullptr;
  auto manifest = read_json_object(out / manifest_name, max_manifest_bytes);
  auto made = manifest.find("made_with");
  return made != manifest.end() && made->is_object() && made->value("program", "") == program ? manifest : nullptr;
}

// Removes a data set that this program made, and nothing else that may lie in its folder.
void remove_previous(const fs::path& out) {
  for (const Part& part : parts()) fs::remove_all(out / *fs::path(part.name).begin());
  fs::remove_all(out / "tokenizer");
  fs::remove(out / manifest_name);
  std::error_code not_empty;
  fs::remove(out, not_empty);
}

void write_tokenizer(const fs::path& folder) {
  make_folders(folder);
  write_file_atomic(folder / "tokenizer.json", make_tokenizer());
  constexpr const char* chat = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
                               "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
                               "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
  Json config{{"tokenizer_class", "PreTrainedTokenizerFast"},
              {"bos_token", "<|im_start|>"},
              {"eos_token", "<|im_end|>"},
              {"pad_token", "<|im_end|>"},
              {"unk_token", "<|endoftext|>"},
              {"clean_up_tokenization_spaces", false},
              {"chat_template", chat}};
  write_file_atomic(folder / "tokenizer_config.json", config.dump(2) + "\n");
}

} // namespace

bool is_made(const Options& options) {
  auto manifest = manifest_at(options.out);
  if (manifest.is_null() || manifest["made_with"] != nlohmann::json(made_with(options))) return false;
  const auto shards = manifest.value("shards", nlohmann::json::object());
  for (const auto& [file, size] : shards.items()) {
    std::error_code missing;
    if (fs::file_size(options.out / file, missing) != size || missing) return false;
  }
  return fs::exists(options.out / "tokenizer" / "tokenizer.json");
}

Made make(const Options& options, const std::function<void(int64_t, int64_t)>& progress) {
  fs::path out = options.out.has_filename() ? options.out : options.out.parent_path(); // "data/shapes/"
  if (!manifest_at(out).is_null()) remove_previous(out);
  AtomicFolder folder(out);
  auto shards = plan(options);
  Made made{.shards = std::ssize(shards)};
  for (const ShardPlan& shard : shards) {
    made.samples += static_cast<int64_t>(shard.end - shard.first);
    make_folders((folder.temporary_path() / shard.file).parent_path());
  }
  write_tokenizer(folder.temporary_path() / "tokenizer");
  ShardThreads shard_threads(options, shards, folder.temporary_path());
  shard_threads.run([&](int64_t done) { progress(done, made.samples); });
  Json files = Json::object();
  for (size_t i = 0; i < shards.size(); ++i) {
    files[shards[i].file] = shard_threads.sizes()[i];
    made.bytes += shard_threads.sizes()[i];
  }
  write_file_atomic(folder.temporary_path() / manifest_name,
                    Json{{"made_with", made_with(options)}, {"shards", files}}.dump(2) + "\n");
  folder.commit();
  return made;
}

} // namespace fvlm::shapes
