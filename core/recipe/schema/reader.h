// Reader: the state while a Value tree is read into structs: where we are, what was wrong, what was written where.
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

// ".lr", or "[\"a.b\"]" for a key that a path could not hold as it is; "[2]" for the second of a list.
std::string key_part(std::string_view key);
std::string index_part(size_t index_from_one);
std::string join_path(std::string_view path, std::string_view part);

class Reader {
 public:
  // Calls a function of the recipe. Throws Error.
  using Call = std::function<Value(FunctionId, std::span<const Value>)>;

  explicit Reader(Call call = {}, std::shared_ptr<Allowance> allowance = std::make_shared<Allowance>())
      : call_(std::move(call)), allowance_(std::move(allowance)) {}

  // A plan file holds derived values too; they are computed anew and not read.
  bool reads_plan_file = false;
  // It had a key of an earlier version, which was passed over: the hash that it states is of that, too.
  bool passed_over_keys = false;

  const std::string& path() const { return path_; }

  // Reads what stands one step further down: within(key_part("lr"), [&] { return type.read(reader, value, out); })
  template <class Read>
  bool within(const std::string& part, Read&& read) {
    size_t length = path_.size();
    path_ = join_path(path_, part);
    bool good = read();
    path_.resize(length);
    return good;
  }

  // Notes where the current path was written: a value, or the table around several.
  void wrote(const Origin& origin, bool whole_value = true);
  // `path` got its value from what was written at `other`, if anything was.
  void inherit(const std::string& path, const std::string& other);
  // Where `path` was written, or else what is nearest above it.
  Origin origin_of(const std::string& path) const;
  // Where the value at `path` was written; null when it is a default.
  const Origin* value_origin(const std::string& path) const;

  // True when nothing at or below `path` was wrong so far.
  bool clean(std::string_view path) const;
  // The value of `part` below the current path is unknown, as it stands under a wrong name or not at all.
  void spoil(std::string_view part) { spoiled_.push_back(join_path(path_, part)); }

  // These report and return false, so that a read can end with `return reader.wrong(...)`.
  bool wrong(const Value& value, std::string_view expected);
  bool complain(const Origin& origin, std::string what, std::string advice = "");
  // A mistake that shows in `part` below the current path (".lr"; "" for the path itself), such as two fields at odds.
  bool complain_at(std::string_view part, std::string what, std::string advice = "");

  // f(argument), or an empty Value and a mistake.
  Value call(FunctionId function, double argument, const Origin& origin);

  // What reading costs besides. Throws Error(recipe) where there is no more; so do wrote() and call().
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
  std::map<std::string, Written> written_;
  std::vector<std::string> spoiled_;
};

// "the number 0.5", "the string \"fast\"", "fvlm.adamw { }", "nil"
std::string shown(const Value& value);

} // namespace fvlm::recipe
