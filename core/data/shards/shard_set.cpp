#include "data/shards/shard_set.h"

#include "base/error.h"
#include "base/glob.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/path_hint.h"
#include "base/text.h"

#include <algorithm>
#include <filesystem>
#include <list>
#include <map>
#include <mutex>
#include <sys/resource.h>
#include <unordered_set>
#include <utility>

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

// Each takes two of the file descriptors that the process may have, half of which are left to everything else.
size_t max_open_shards() {
  constexpr size_t most = 1024, fewest = 16;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return fewest;
  return std::clamp<size_t>(limit.rlim_cur / 4, fewest, most);
}

// Of all sets of the process, since they share its file descriptors.
class OpenShards {
 public:
  using Key = std::pair<const ShardSet*, int64_t>; // and the number in it

  static OpenShards& all() {
    static OpenShards& shards = *new OpenShards; // never destroyed: sets may be closed at the end of the process
    return shards;
  }

  std::shared_ptr<const Shard> find(const Key& key) {
    const std::lock_guard guard(lock_);
    const auto found = open_.find(key);
    if (found == open_.end()) return nullptr;
    recent_.splice(recent_.begin(), recent_, found->second);
    return found->second->shard;
  }

  // Returns the shard, or the one that another thread added first, and closes those that were not used for longest.
  std::shared_ptr<const Shard> add(const Key& key, std::shared_ptr<const Shard> shard, size_t most) {
    std::vector<std::shared_ptr<const Shard>> closed; // behind the lock
    const std::lock_guard guard(lock_);
    if (const auto found = open_.find(key); found != open_.end()) return found->second->shard;
    recent_.push_front({key, shard});
    open_[key] = recent_.begin();
    while (recent_.size() > most) {
      closed.push_back(std::move(recent_.back().shard));
      open_.erase(recent_.back().key);
      recent_.pop_back();
    }
    return shard;
  }

  void close(const ShardSet* set) {
    const std::lock_guard guard(lock_);
    const auto first = open_.lower_bound({set, 0});
    auto end = first;
    for (; end != open_.end() && end->first.first == set; ++end) recent_.erase(end->second);
    open_.erase(first, end);
  }

 private:
  struct Open {
    Key key;
    std::shared_ptr<const Shard> shard;
  };
  std::mutex lock_;        // of the two below
  std::list<Open> recent_; // most recently used first
  std::map<Key, std::list<Open>::iterator> open_;
};

} // namespace

ShardOptions with_root(ShardOptions options, const plan::Source& source) {
  options.root = source.root.value_or("");
  return options;
}

ShardSet::ShardSet(const std::vector<std::string>& patterns, ShardOptions options, const Progress& progress)
    : options_(std::move(options)), paths_(files_of(patterns)) {
  if (options_.open_shards == 0) options_.open_shards = max_open_shards();
  index_all(progress);
  if (size() == 0)
    throw Error(ErrorKind::data, "no sample in {}{}", counted(std::ssize(paths_), "shard"), first_damage())
        .at(patterns.empty() ? "" : patterns.front())
        .advise("a shard is a tar or folder of files such as 000012.jpg and 000012.json, or a .jsonl, .json, .tsv or "
                ".parquet of samples");
}

ShardSet::~ShardSet() {
  OpenShards::all().close(this);
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
  if (auto found = OpenShards::all().find({this, number})) return found;
  auto opened = Shard::reopen(path(number), options_, stamps_.at(static_cast<size_t>(number)));
  return OpenShards::all().add({this, number}, std::move(opened), options_.open_shards);
}

} // namespace fvlm
