// Reader: the state of reading a Value tree into structs: the current path, the mistakes, and where values were
// written.
#pragma once
#include "recipe/allowance.h"
#include "recipe/schema/mistakes.h"

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm::recipe {

// Parts of a path: key_part() returns ".lr", or "[\"a.b\"]" for a key with special characters; index_part(2) is "[2]".
std::string key_part(std::string_view key);
std::string index_part(size_t index_from_one);
std::string join_path(std::string_view path, std::string_view part);

class Reader {
 public:
  // Calls a function of the recipe. Throws Error.
  using Call = std::function<Value(FunctionId, std::span<const Value>)>;

  explicit Reader(Call call = {}, std::shared_ptr<Allowance> allowance = std::make_shared<Allowance>())
      : call_(std::move(call)), allowance_(std::move(allowance)) {}

  // A plan file also contains derived values, which are computed again instead of read.
  bool reads_plan_file = false;
  // The plan file had a key of an earlier version, which was ignored. The recorded hash then cannot match.
  bool ignored_removed_key = false;

  const std::string& path() const { return path_; }

  // Reads a nested value: within(key_part("lr"), [&] { return type.read(reader, value, out); })
  template <class Read>
  bool within(const std::string& part, Read&& read) {
    size_t length = path_.size();
    path_ = join_path(path_, part);
    bool good = read();
    path_.resize(length);
    return good;
  }

  // Records where the current path was written: a whole value, or the table that contains several.
  void record_origin(const Origin& origin, bool whole_value = true);
  // Gives `path` the origin of `other`, if that was written.
  void inherit_origin(const std::string& path, const std::string& other);
  // Where `path` was written, or else its nearest parent.
  Origin origin_of(const std::string& path) const;
  // Where the value at `path` was written. Null: it is a default.
  const Origin* value_origin(const std::string& path) const;

  // Whether no mistake was found at or below `path` so far.
  bool is_valid(std::string_view path) const;
  // Marks `part` below the current path as unknown, because it is missing or has a wrong name.
  void mark_unknown(std::string_view part) { unknown_paths_.push_back(join_path(path_, part)); }
  // Takes that back for a path, because its value came from elsewhere.
  void mark_known(std::string_view path) { std::erase(unknown_paths_, path); }

  // These add a mistake and return false, so that a read can end with `return reader.report_unexpected(...)`.
  bool report_unexpected(const Value& value, std::string_view expected);
  bool report(const Origin& origin, std::string what, std::string advice = "");
  // Adds a mistake at `part` below the current path (".lr"; "" for the path itself), such as two conflicting fields.
  bool report_at(std::string_view part, std::string what, std::string advice = "");

  // Returns function(argument). Where that fails, reports a mistake and returns an empty Value.
  Value call(FunctionId function, double argument, const Origin& origin);

  // What reading is charged to. Throws Error(recipe) where there is no more; so do wrote() and call().
  Allowance& allowance() const { return *allowance_; }

  Mistakes mistakes;

 private:
  struct Written {
    Origin origin;
    bool whole_value;
  };
  Call call_;
  std::shared_ptr<Allowance> allowance_;
  std::string path_;
  std::map<std::string, Written> origins_;
  std::vector<std::string> unknown_paths_;
};

// Describes a value in a message: "the number 0.5", "the string \"fast\"", "fvlm.adamw { }", "nil"
std::string describe_value(const Value& value);

} // namespace fvlm::recipe
