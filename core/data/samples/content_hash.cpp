#include "data/samples/content_hash.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/parallel.h"
#include "data/samples/input_content.h"
#include "data/samples/named_media.h"

#include <algorithm>
#include <limits>
#include <span>
#include <vector>

namespace fvlm {
namespace {

constexpr int64_t samples_read = 256; // of all shards together
constexpr int threads = 16;           // a network disk answers several at once

void add_named_files(const Shard& shard, const Parts& parts, ShardSample& sample) {
  add_named_media(shard, parts, sample);
  if (!has_inputs(parts)) return;
  plan::Mix all;
  all.negatives = std::numeric_limits<int64_t>::max();
  for (const InputContent& input : parse_inputs(parts, all, {})) add_named_media(shard, parts, input.media, sample);
}

// Of the files that a sample's JSON names; 0: none.
uint64_t hash_of_named_files(const Shard& shard, ShardSample sample, const plan::Source& source) {
  if (!shard.names_media() || !sample.damage.empty()) return 0;
  Xxh64 hash;
  const uint64_t empty = hash.value();
  try {
    const auto json = shard.json(sample);
    sample.members.clear(); // its JSON is hashed with the shard
    if (json) add_named_files(shard, Parts(*json, source.fields), sample);
    shard.hash_files(sample, hash);
  } catch (const ReadError&) {
    throw;
  } catch (const Error&) { // a broken sample, or a file that is not there
    return 1;
  }
  return hash.value() == empty ? 0 : hash.value();
}

} // namespace

uint64_t content_hash(const ShardSet& shards, const plan::Source& source) {
  const int64_t count = std::min(shards.size(), samples_read);
  std::vector<uint64_t> named(static_cast<size_t>(count));
  in_parallel(count, threads, [&](int64_t i) {
    const SampleLocation place = shards.locate(i * shards.size() / count);
    const auto shard = shards.shard(place);
    named[static_cast<size_t>(i)] = hash_of_named_files(*shard, shard->sample(place.sample), source);
  });
  const uint64_t content = shards.content_hash();
  // Most data name no files and keep the hash that they have alone.
  if (std::ranges::all_of(named, [](uint64_t each) { return each == 0; })) return content;
  Xxh64 hash;
  hash.update(std::as_bytes(std::span(&content, 1)));
  hash.update(std::as_bytes(std::span(named)));
  return hash.value();
}

} // namespace fvlm
