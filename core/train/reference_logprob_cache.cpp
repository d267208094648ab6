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

} // namespace

ReferenceLogProbCache::ReferenceLogProbCache(const Order& order, std::filesystem::path file)
    : keys_(order), file_(std::move(file)) {}

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
  std::ranges::sort(records, {}, &Record::key);
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
  const auto found = pairs_.find(keys_.of(packed));
  if (found == pairs_.end())
    throw Error(ErrorKind::data,
                "the reference's log-probabilities of {} (source {}) are not known: the stage's data have changed "
                "since they were computed",
                shown(packed.sample->key), shown(packed.sample->source))
        .at(file_.string())
        .advise("remove the file: they are computed again");
  return found->second;
}

} // namespace fvlm::train
