#include "train/reference_logprob_cache.h"

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/new_file.h"
#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace fvlm::train {
namespace {

// A line of text, "fvlm-reference 1 IDENTITY whole|part COUNT"; a record a pair; the hash of all that.
constexpr const char* format = "fvlm-reference 1";
struct Record {
  uint64_t key;
  double chosen, rejected;
};
static_assert(sizeof(Record) == 24);

template <class T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

template <class T>
void add(Xxh64& hash, std::span<const T> values) {
  const uint64_t count = values.size();
  hash.update(std::as_bytes(std::span(&count, 1)));
  hash.update(std::as_bytes(values));
}

} // namespace

ReferenceLogProbCache::ReferenceLogProbCache(const Order& order, std::filesystem::path file)
    : order_(order), order_state_(order.begin()), file_(std::move(file)) {}

void ReferenceLogProbCache::open(const std::string& identity) {
  identity_ = identity;
  pairs_.clear();
  complete_ = false;
  if (!std::filesystem::exists(file_)) return;
  try {
    read();
  } catch (const Error& error) {
    pairs_.clear();
    log_warning("{}\n  the reference's log-probabilities are computed again", error.text());
  }
}

void ReferenceLogProbCache::read() {
  const std::string text = read_file(file_, uint64_t{1} << 40);
  const auto refuse = [&](const char* why) { throw Error(ErrorKind::data, why).at(file_.string()); };
  uint64_t hash = 0;
  const size_t line = text.find('\n');
  if (text.size() < sizeof hash || line == text.npos) refuse("no file of a reference's log-probabilities");
  const size_t end = text.size() - sizeof hash;
  std::memcpy(&hash, text.data() + end, sizeof hash);
  if (hash != xxh64(std::string_view(text).substr(0, end))) refuse("the file is damaged");
  const auto header = fmt::format("{} {} ", format, identity_);
  if (!text.starts_with(header)) refuse("these are another reference's log-probabilities, or another plan's");
  const auto words = split(text.substr(header.size(), line - header.size()), ' ');
  const size_t count = (end - line - 1) / sizeof(Record);
  if (words != std::vector<std::string>{words.front(), std::to_string(count)}) refuse("the file is damaged");
  for (size_t i = 0; i < count; ++i) {
    Record record;
    std::memcpy(&record, text.data() + line + 1 + i * sizeof record, sizeof record);
    pairs_[record.key] = {record.chosen, record.rejected};
  }
  complete_ = words.front() == "whole";
}

void ReferenceLogProbCache::write(bool complete) {
  complete_ = complete;
  std::vector<Record> records;
  records.reserve(pairs_.size());
  for (const auto& [key, pair] : pairs_) records.push_back({key, pair.chosen, pair.rejected});
  std::sort(records.begin(), records.end(), [](const Record& a, const Record& b) { return a.key < b.key; });
  std::string text = fmt::format("{} {} {} {}\n", format, identity_, complete ? "whole" : "part", records.size());
  for (const Record& record : records) text += bytes_of(record);
  text += bytes_of(xxh64(text));
  try {
    make_folders(file_.parent_path());
    write_file_atomic(file_, text);
  } catch (const Error& error) {
    log_warning("the reference's log-probabilities are not on disk: {}", error.text());
  }
}

const ReferenceLogProbCache::Pair& ReferenceLogProbCache::at(const PackedSample& packed) {
  const auto found = pairs_.find(key_of(packed));
  if (found == pairs_.end())
    throw Error(ErrorKind::data, fmt::format("the reference's log-probabilities of {} (source {}) are not known: the "
                                             "stage's data have changed since they were computed",
                                             shown(packed.sample->key), shown(packed.sample->source)))
        .at(file_.string())
        .advise("remove the file: they are computed again");
  return found->second;
}

uint64_t ReferenceLogProbCache::sample_hash(int64_t position) {
  const std::lock_guard hold(lock_);
  while (std::ssize(hashes_) <= position) {
    const auto drawn = order_.next(order_state_);
    if (!drawn) throw Error(ErrorKind::internal, fmt::format("nothing stands at position {}", position));
    Xxh64 hash;
    const std::array<uint64_t, 2> place{drawn->source, static_cast<uint64_t>(drawn->sample)};
    hash.update(std::as_bytes(std::span(place)));
    hashes_.push_back(hash.value());
  }
  return hashes_[static_cast<size_t>(position)];
}

// Of the sample itself, so that an epoch finds what another one computed; and of what is said in it, so that nothing is
// believed of data that were changed.
uint64_t ReferenceLogProbCache::key_of(const PackedSample& packed) {
  const uint64_t number = sample_hash(packed.position);
  const Sample& sample = *packed.sample;
  Xxh64 hash;
  hash.update(std::as_bytes(std::span(&number, 1)));
  add(hash, std::span<const char>(sample.key));
  for (const SampleText& text : sample.texts) {
    add(hash, std::span<const TokenId>(text.ids));
    add(hash, std::span<const uint8_t>(text.answer_mask));
  }
  return hash.value();
}

std::string fingerprint(const model::Parameters& parameters) {
  Xxh64 hash;
  for (const ops::Parameter& parameter : parameters.all()) {
    const at::Tensor value = parameter.value.cpu().contiguous();
    add(hash, std::span<const char>(parameter.name));
    hash.update({static_cast<const std::byte*>(value.const_data_ptr()), static_cast<size_t>(value.nbytes())});
  }
  return fmt::format("{:016x}", hash.value());
}

} // namespace fvlm::train
