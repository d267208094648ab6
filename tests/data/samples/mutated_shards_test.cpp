// Shards mutated by seed: nothing crashes or hangs, and untouched samples are read unchanged. FVLM_MUTATIONS is the
// number of mutations (1,000), FVLM_FIRST_MUTATION the first seed.
#include "../process_limits.h"
#include "base/log.h"
#include "data/samples/sample_reader.h"
#include "mutation.h"
#ifdef FVLM_TEST_LIBRARY // the video plugin
#include "../media/bytes.h"
#endif
#include "sample_maker.h"

#include <map>

using namespace fvlm;
using namespace fvlm::test;

namespace {

constexpr int64_t image_size = 8;

class Reading {
 public:
  // The samples read from a shard: a digest of everything that the model would get, by key.
  std::map<std::string, uint64_t> read(const fs::path& path) {
    std::map<std::string, uint64_t> good;
    ShardOptions options{.cache = folder_ / "cache", .index_beside = false, .most_unpacked = uint64_t{16} << 20};
    auto shard = Shard::open(path, options);
    for (const auto& damage : shard->damage()) damages += !damage.reason.empty();
    for (int64_t i = 0; i < shard->size(); ++i) {
      ShardSample members = shard->sample(i);
      try {
        Sample sample = reader_.measure(*shard, members, wanted_.source);
        std::vector<float> frames(static_cast<size_t>(sample.frames * 3 * image_size * image_size));
        reader_.decode(*shard, sample, frames);
        EXPECT_TRUE(good.emplace(sample.key, digest(sample, frames)).second) << sample.key << " came twice";
      } catch (const ReadError&) {
        throw;
      } catch (const Error& broken) {
        EXPECT_EQ(broken.kind(), ErrorKind::data) << broken.text();
        EXPECT_NE(broken.text().find(members.key), std::string::npos) << broken.text();
        ++this->broken;
      }
    }
    return good;
  }

  const Folder& folder() const { return folder_; }
  uint64_t broken = 0, damages = 0;

 private:
  static const VideoDecoder* decoder() {
#ifdef FVLM_TEST_LIBRARY
    static const VideoDecoder ffmpeg = media_test::ffmpeg_decoder();
    return &ffmpeg;
#else
    return nullptr;
#endif
  }

  static uint64_t digest(const Sample& sample, const std::vector<float>& frames) {
    Xxh64 hash;
    for (const auto& text : sample.texts) {
      hash.update(std::as_bytes(std::span(text.ids)));
      hash.update(std::as_bytes(std::span(text.answer_mask)));
    }
    hash.update(std::as_bytes(std::span(frames)));
    return hash.value();
  }

  Folder folder_;
  Wanted wanted_;
  SampleReader reader_{wanted_.mix, byte_tokenizer(), image_size, decoder()};
};

} // namespace

TEST(MutatedShards, NeverCrashAndKeepUntouchedSamples) {
  set_log_level(LogLevel::error);
  const SyntheticShard made = made_shard();
  Reading reading;
  write_bytes(reading.folder() / "good.tar", made.bytes);
  const auto good = reading.read(reading.folder() / "good.tar");
#ifdef FVLM_TEST_LIBRARY
  ASSERT_EQ(good.size(), 24);
#else
  ASSERT_EQ(good.size(), 21) << "all but the three videos";
#endif

  uint64_t first = from_environment("FVLM_FIRST_MUTATION", 0), count = from_environment("FVLM_MUTATIONS", 1000);
  uint64_t untouched = 0, delivered = 0;
  double slowest = 0;
  reading.broken = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    Mutated mutated = mutate(made, seed);
    auto path = reading.folder() / (mutated.packed ? "a.tgz" : "a.tar");
    write_bytes(path, mutated.bytes);
    double begin = processor_seconds();
    std::map<std::string, uint64_t> found;
    try {
      found = reading.read(path);
    } catch (const std::exception& error) {
      FAIL() << "seed " << seed << ", " << mutated.what << ": " << error.what();
    }
    slowest = std::max(slowest, processor_seconds() - begin);
    delivered += found.size();
    for (const auto& [key, value] : good) {
      if (mutated.touched.contains(key)) continue;
      ++untouched;
      ASSERT_TRUE(found.contains(key)) << "seed " << seed << ", " << mutated.what << ": lost " << key;
      ASSERT_EQ(found.at(key), value) << "seed " << seed << ", " << mutated.what << ": other content in " << key;
    }
  }
  EXPECT_LT(slowest, slowest_allowed) << "seconds for one shard";
  EXPECT_LT(peak_kib(), max_memory_kib) << "KiB";
  fmt::print("{} shards: {} samples delivered, among them all {} untouched ones; {} broken samples told, {} places of "
             "damage; slowest shard {:.3f} s, peak {} MiB\n",
             count, delivered, untouched, reading.broken, reading.damages, slowest, peak_kib() / 1024);
}
