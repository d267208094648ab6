#include "bench/jpeg_shards.h"

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/parallel.h"
#include "base/random.h"
#include "data/media/resize.h"
#include "data/media/write_image.h"
#include "data/shards/shard_writer.h"
#include "data/unicode.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>

namespace fvlm::bench {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* manifest_name = "made.json";
constexpr uint64_t max_manifest_bytes = 1 << 16;
constexpr int version = 1, jpeg_quality = 90;

// Grids of random colours that are blown up to the picture's size, and what each contributes: large shapes, and detail
// that costs a decoder as much as a photo's does.
struct Octave {
  int64_t columns, rows;
  double weight;
};
constexpr Octave octaves[] = {{4, 3, 0.5}, {16, 12, 0.25}, {64, 48, 0.15}, {256, 192, 0.1}};

Image picture(const RandomStream& colours, uint64_t number, const JpegShards& settings) {
  const auto size = static_cast<size_t>(settings.width * settings.height * 3);
  std::vector<double> sum(size);
  std::vector<uint8_t> enlarged(size);
  uint64_t drawn = number << 20;
  for (const Octave& octave : octaves) {
    Image grid{octave.columns, octave.rows, {}};
    for (int64_t i = 0; i < octave.columns * octave.rows * 3; ++i)
      grid.rgb.push_back(static_cast<uint8_t>(colours.bits(drawn++)));
    resize(grid, settings.width, settings.height, enlarged, ResizeFilter::bicubic);
    for (size_t i = 0; i < size; ++i) sum[i] += octave.weight * enlarged[i];
  }
  Image image{settings.width, settings.height, std::vector<uint8_t>(size)};
  for (size_t i = 0; i < size; ++i) image.rgb[i] = static_cast<uint8_t>(sum[i]);
  return image;
}

// Letters alone, so that the pre-tokenizer leaves it whole.
std::string word(int64_t number) {
  std::string letters = "w";
  for (int digit = 0; digit < 4; ++digit, number /= 26) letters += static_cast<char>('a' + number % 26);
  return letters;
}

constexpr const char* special_tokens[] = {"<|im_start|>", "<|im_end|>"};
constexpr const char* roles[] = {"user", "assistant"};
constexpr int64_t bytes_and_roles = 256 + 2, special_count = 2;

int64_t words_of(const JpegShards& settings) {
  return settings.vocabulary - bytes_and_roles - special_count;
}

// All bytes, the roles of a chat, words with the space before them, and the special tokens. Without merges, words are
// found whole.
Json tokenizer_json(const JpegShards& settings) {
  const auto written = [](std::string_view text) {
    std::string all;
    for (const char byte : text) append_utf8(all, byte_alphabet().point_of_byte[static_cast<unsigned char>(byte)]);
    return all;
  };
  Json vocabulary = Json::object(), special = Json::array();
  int64_t next = 0;
  for (int byte = 0; byte < 256; ++byte) vocabulary[written(std::string(1, static_cast<char>(byte)))] = next++;
  for (const char* role : roles) vocabulary[role] = next++;
  for (int64_t i = 0; i < words_of(settings); ++i) vocabulary[written(" " + word(i))] = next++;
  for (const char* token : special_tokens) special.push_back({{"id", next++}, {"content", token}, {"special", true}});
  return {{"added_tokens", special},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"ignore_merges", true}, {"vocab", vocabulary}, {"merges", Json::array()}}}};
}

// Everything that decides the bytes.
Json made_with(const JpegShards& settings) {
  return {{"version", version},      {"samples", settings.samples}, {"pictures", settings.pictures},
          {"text", settings.text},   {"seed", settings.seed},       {"vocabulary", settings.vocabulary},
          {"width", settings.width}, {"height", settings.height},   {"quality", jpeg_quality}};
}

// Returns the bytes of its JPEGs.
int64_t write_shard(const JpegShards& settings, const fs::path& file, int64_t first, int64_t end) {
  const RandomStream colours(settings.seed, "pictures"), words(settings.seed, "captions");
  int64_t bytes = 0;
  ShardWriter shard(file);
  for (int64_t sample = first; sample < end; ++sample) {
    const std::string key = fmt::format("{:07}", sample);
    for (int64_t i = 0; i < settings.pictures; ++i) {
      const auto number = static_cast<uint64_t>(sample * settings.pictures + i);
      const std::string jpeg = write_jpeg(picture(colours, number, settings), jpeg_quality);
      shard.add(settings.pictures > 1 ? fmt::format("{}.{:03}.jpg", key, i) : key + ".jpg", jpeg);
      bytes += std::ssize(jpeg);
    }
    std::string caption;
    for (int64_t i = 0; i < settings.text; ++i)
      caption += " " + word(words.bits(static_cast<uint64_t>(sample * settings.text + i)) % words_of(settings));
    shard.add(key + ".txt", caption);
  }
  shard.commit();
  return bytes;
}

MadeShards found_in(const fs::path& folder, int64_t jpeg_bytes) {
  return {{(folder / "*.tar").string()}, folder / "tokenizer", jpeg_bytes};
}

// What an earlier call made.
MadeShards reuse(const JpegShards& settings, const fs::path& folder) {
  if (!fs::exists(folder / manifest_name))
    throw Error(ErrorKind::usage, "the folder exists and does not hold pictures that this benchmark made")
        .at(folder.string())
        .advise("name another folder, which will be made");
  const auto manifest = read_json_object(folder / manifest_name, max_manifest_bytes);
  const auto bytes = manifest.find("jpeg_bytes");
  if (manifest.value("made_with", nlohmann::json()) != nlohmann::json(made_with(settings)) || bytes == manifest.end() ||
      !bytes->is_number_integer())
    throw Error(ErrorKind::usage, "the pictures in this folder were made with other settings")
        .at(folder.string())
        .advise("remove the folder, or name another one, which will be made");
  return found_in(folder, bytes->get<int64_t>());
}

} // namespace

MadeShards make_jpeg_shards(const JpegShards& settings, const fs::path& path,
                            const std::function<void(int64_t, int64_t)>& progress) {
  const fs::path folder = path.has_filename() ? path : path.parent_path(); // "data/pictures/"
  if (settings.vocabulary < JpegShards::min_vocabulary)
    throw Error(ErrorKind::usage, "captions need a vocabulary of {} tokens, not of {}", JpegShards::min_vocabulary,
                settings.vocabulary)
        .advise("use another --shape");
  if (fs::exists(folder)) return reuse(settings, folder);
  AtomicFolder made(folder);
  const fs::path& into = made.temporary_path();
  make_folders(into / "tokenizer");
  write_file_atomic(into / "tokenizer" / "tokenizer.json", tokenizer_json(settings).dump());
  const int64_t shards = (settings.samples + JpegShards::per_shard - 1) / JpegShards::per_shard;
  std::atomic<int64_t> bytes = 0;
  std::mutex lock; // of the next one and of progress
  int64_t done = 0;
  in_parallel(shards, threads_or_cores(0), [&](int64_t shard) {
    const int64_t first = shard * JpegShards::per_shard,
                  end = std::min(settings.samples, first + JpegShards::per_shard);
    bytes += write_shard(settings, into / fmt::format("{:05}.tar", shard), first, end);
    const std::scoped_lock locked(lock);
    progress(done += end - first, settings.samples);
  });
  const Json manifest{{"made_with", made_with(settings)}, {"jpeg_bytes", bytes.load()}};
  write_file_atomic(into / manifest_name, manifest.dump(2) + "\n");
  made.commit();
  return found_in(folder, bytes);
}

} // namespace fvlm::bench
