#include "data/shards/shard_set.h"

#include "base/error.h"
#include "base/glob.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/path_hint.h"
#include "base/text.h"

#include <algorithm>
#include <filesystem>
#include <unordered_set>

namespace fvlm {
namespace {

std::vector<std::string> files_of(const std::vector<std::string>& patterns) {
  std::vector<std::string> files;
  std::unordered_set<std::string> seen;
  size_t repeated = 0;
  for (const auto& pattern : patterns) {
    Matches found = match_files(pattern);
    if (!found.nothing.empty()) {
      const auto& first = found.nothing.front();
      size_t all = found.files.size() + found.nothing.size();
      throw Error(ErrorKind::data, first == pattern ? "no file matches"
                                                    : fmt::format("{} of the {} names it stands for are not there, the "
                                                                  "first is {}",
                                                                  found.nothing.size(), all, first))
          .at(pattern)
          .advise(with_start_of(first, "correct the pattern, or bring the shards to where it says"));
    }
    for (auto& file : found.files) {
      if (std::filesystem::is_directory(file))
        if (const std::string advice = advise_folder(file); !advice.empty())
          throw Error(ErrorKind::data, "it is a folder of shards, and no shard").at(file).advise(advice);
      if (seen.insert(file).second)
        files.push_back(std::move(file));
      else
        ++repeated;
    }
  }
  if (repeated == 1) log_warning("1 shard is named more than once, and is read once");
  if (repeated > 1) log_warning("{} shards are named more than once, and are read once", repeated);
  return files;
}

} // namespace

ShardOptions with_root(ShardOptions options, const plan::Source& source) {
  options.root = source.root.value_or("");
  return options;
}

ShardSet::ShardSet(const std::vector<std::string>& patterns, ShardOptions options, const Progress& progress)
    : options_(std::move(options)), paths_(files_of(patterns)) {
  options_.open_shards = std::max<size_t>(options_.open_shards, 1);
  index_all(progress);
  if (size() == 0)
    throw Error(ErrorKind::data, "no sample in {}{}", counted(std::ssize(paths_), "shard"), first_damage())
        .at(patterns.empty() ? "" : patterns.front())
        .advise("a shard is a tar or folder of files such as 000012.jpg and 000012.json, or a .jsonl, .json, .tsv or "
                ".parquet "
                "of samples");
}

void ShardSet::index_all(const Progress& progress) {
  size_t count = paths_.size();
  ends_.resize(count);
  stamps_.resize(count);
  damages_.resize(count);
  std::mutex telling;
  int64_t done = 0;
  in_parallel(std::ssize(paths_), threads_or_cores(options_.threads), [&](int64_t number) {
    const auto i = static_cast<size_t>(number);
    auto shard = Shard::open(paths_[i], options_);
    ends_[i] = shard->size();
    stamps_[i] = shard->stamp();
    damages_[i] = shard->damages();
    std::lock_guard guard(telling);
    ++done;
    if (progress) progress(done, static_cast<int64_t>(count));
  });
  for (size_t i = 1; i < count; ++i) ends_[i] += ends_[i - 1];
  for (size_t i = 0; i < count; ++i)
    if (damages_[i] > 0)
      log_warning("{}: {} in it {} damaged or of no use{}", paths_[i],
                  counted(static_cast<int64_t>(damages_[i]), "place"), damages_[i] == 1 ? "is" : "are", damage_text(i));
}

// The first, and what may have happened.
std::string ShardSet::damage_text(size_t number) const {
  const auto opened = Shard::open(paths_[number], options_);
  const auto damage = opened->damage();
  if (damage.empty()) return "";
  const std::string cause =
      is_about_names(damage.front()) ? "give the files of each sample a name of their own: KEY.json, KEY.jpg"
      : opened->size() == 0          ? fmt::format("it is not {}, or only a piece of one", opened->form().name)
                                     : "if it was copied or downloaded, do that again";
  return fmt::format(", the first at byte {}: {} ({})", damage.front().offset, damage.front().reason, cause);
}

std::string ShardSet::first_damage() const {
  for (size_t i = 0; i < paths_.size(); ++i)
    if (damages_[i] > 0) return fmt::format("; {}{}", paths_[i], damage_text(i));
  return "";
}

SampleLocation ShardSet::locate(int64_t i) const {
  if (i < 0 || i >= size()) throw Error(ErrorKind::internal, "sample {} of {}", i, size());
  auto shard = std::ranges::upper_bound(ends_, i) - ends_.begin();
  return {shard, i - first(shard)};
}

std::shared_ptr<const Shard> ShardSet::shard(int64_t number) const {
  {
    std::lock_guard guard(lock_);
    if (auto found = open_.find(number); found != open_.end()) {
      recent_.splice(recent_.begin(), recent_, found->second);
      return found->second->shard;
    }
  }
  auto opened = Shard::reopen(path(number), options_, stamps_.at(static_cast<size_t>(number)));
  std::shared_ptr<const Shard> closed; // outside the lock
  std::lock_guard guard(lock_);
  if (auto found = open_.find(number); found != open_.end()) return found->second->shard; // another thread was first
  recent_.push_front({number, opened});
  open_[number] = recent_.begin();
  if (recent_.size() > options_.open_shards) {
    closed = std::move(recent_.back().shard);
    open_.erase(recent_.back().number);
    recent_.pop_back();
  }
  return opened;
}

} // namespace fvlm
