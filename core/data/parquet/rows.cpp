// The form .parquet: a row is a JSON object of its columns, put together from the levels of their values.
#include "base/error.h"
#include "data/parquet/page_cache.h"
#include "data/shards/shard_form.h"
#include "data/shards/shard_index.h"
#include "data/unicode.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <memory>
#include <mutex>
#include <vector>

namespace fvlm {
namespace {

using namespace parquet;
using Json = nlohmann::json;

// Says which column an error is about.
template <class Work>
auto with_column(const Column& column, const Work& work) {
  try {
    return work();
  } catch (const ReadError&) {
    throw;
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("column '{}': {}", column.name, error.what())).advise(error.advice());
  }
}

Json json_of(const Column& column, const Value& value) {
  switch (column.type) {
  case Physical::boolean:
    return value.integer != 0;
  case Physical::int32:
  case Physical::int64:
    return value.integer >= 0 || column.is_unsigned ? Json(static_cast<uint64_t>(value.integer)) : Json(value.integer);
  case Physical::float32:
  case Physical::float64:
    return value.real;
  default:
    if (!column.is_text) return Json::binary({value.bytes.begin(), value.bytes.end()});
    if (ValidUtf8(value.bytes).view() != value.bytes) throw Error(ErrorKind::data, "a text is no UTF-8");
    return std::string(value.bytes);
  }
}

// Puts the values of one column into a row.
class RowFiller {
 public:
  RowFiller(const Column& column, Json& row)
      : column_(column), row_(row), items_(static_cast<size_t>(column.max_repetition) + 1) {}

  void add(const PlacesOfRow& places) {
    const Page& page = *places.page;
    for (size_t i = places.begin; i < places.end; ++i) {
      const auto repetition = page.repetitions.empty() ? 0 : static_cast<int>(page.repetitions[i]);
      const auto definition = page.definitions.empty() ? column_.max_definition : static_cast<int>(page.definitions[i]);
      const bool has_value = definition == column_.max_definition;
      put(repetition, definition, has_value ? &page.values.at(page.before.empty() ? i : page.before[i]) : nullptr);
    }
  }

 private:
  void put(int repetition, int definition, const Value* value) {
    Json* at = &row_;
    for (const Step& step : column_.steps) {
      if (step.kind == Step::Kind::key) {
        if (at->is_null()) *at = Json::object();
        at = &(*at)[step.key];
      } else if (step.kind == Step::Kind::item) {
        if (at->is_null()) *at = Json::array();
      }
      if (definition < step.defined) return; // null, or an empty list
      if (step.kind != Step::Kind::item) continue;
      size_t& item = items_[static_cast<size_t>(step.repetition)];
      if (step.repetition == repetition) ++item;
      if (step.repetition > repetition) item = 0;
      while (at->size() <= item) at->push_back(nullptr);
      at = &(*at)[item];
    }
    if (value) *at = json_of(column_, *value);
  }

  const Column& column_;
  Json& row_;
  std::vector<size_t> items_; // where in each list, by its repetition level
};

class ParquetRows final : public RowReader {
 public:
  explicit ParquetRows(const RetryingFile& file) : metadata_(read_metadata(file)) {
    for (const RowGroup& group : metadata_.groups) {
      const auto& opened = groups_.emplace_back(std::make_shared<GroupPages>());
      for (size_t i = 0; i < group.chunks.size(); ++i)
        opened->columns.emplace_back(file, metadata_.columns[i], group.chunks[i]);
    }
  }
  ~ParquetRows() override {
    for (const auto& group : groups_) PageCache::of_process().remove(*group);
  }
  ParquetRows(const ParquetRows&) = delete;
  ParquetRows& operator=(const ParquetRows&) = delete;

  // The rows before each group, and those of all behind the last. A group with another number of rows than the file
  // says has none, and is told to `damage`.
  template <class OnDamage>
  std::vector<uint64_t> count_rows(OnDamage&& on_damage) {
    ends_.clear();
    uint64_t all = 0;
    int64_t expected = metadata_.rows;
    for (size_t i = 0; i < groups_.size(); ++i) {
      const auto& group = metadata_.groups[i];
      try {
        const size_t column = shortest_column(group);
        const uint64_t rows =
            with_column(metadata_.columns[column], [&] { return groups_[i]->columns[column].rows(); });
        if (rows != static_cast<uint64_t>(group.rows))
          throw Error(ErrorKind::data, "it has {} rows, and {} were expected", rows, group.rows);
        all += rows;
      } catch (const ReadError&) {
        throw;
      } catch (const Error& error) {
        on_damage(group.chunks[0].begin,
                  fmt::format("the {} rows of row group {} are lost: {}", group.rows, i, error.what()));
      }
      ends_.push_back(all);
      expected -= group.rows;
    }
    if (expected != 0)
      on_damage(0, fmt::format("the file says that it has {} rows, and its row groups have {}", metadata_.rows,
                               metadata_.rows - expected));
    return ends_;
  }

  Json row(const ShardSample& sample) const override {
    const auto row = static_cast<uint64_t>(sample.number);
    const auto at = static_cast<size_t>(std::ranges::upper_bound(ends_, row) - ends_.begin());
    if (at == ends_.size()) throw Error(ErrorKind::internal, "row {} of a table", sample.number);
    GroupPages& group = *groups_[at];
    Json json = Json::object();
    uint64_t decoded = 0;
    {
      const std::lock_guard guard(group.lock);
      try {
        read(group, at, row - (at == 0 ? 0 : ends_[at - 1]), json);
      } catch (...) {
        for (ColumnPages& column : group.columns) column.forget();
        throw;
      }
      for (const ColumnPages& column : group.columns) decoded += column.weight();
    }
    PageCache::of_process().keep(groups_[at], decoded);
    return json;
  }

 private:
  // `row` of the group `at`.
  void read(GroupPages& group, size_t at, uint64_t row, Json& json) const {
    for (size_t i = 0; i < group.columns.size(); ++i)
      with_column(metadata_.columns[i], [&] {
        if (group.columns[i].rows() != static_cast<uint64_t>(metadata_.groups[at].rows))
          throw Error(ErrorKind::data, "it has another number of rows than the file says");
        RowFiller filler(metadata_.columns[i], json);
        for (const PlacesOfRow& places : group.columns[i].row(row)) filler.add(places);
      });
  }

  // One without lists, whose pages say how many rows they have.
  size_t shortest_column(const RowGroup& group) const {
    if (group.chunks.empty()) throw Error(ErrorKind::data, "it has no columns");
    const auto cost = [&](size_t i) { return std::pair(metadata_.columns[i].max_repetition, group.chunks[i].size); };
    size_t best = 0;
    for (size_t i = 1; i < group.chunks.size(); ++i)
      if (cost(i) < cost(best)) best = i;
    return best;
  }

  Metadata metadata_;
  std::vector<std::shared_ptr<GroupPages>> groups_;
  std::vector<uint64_t> ends_;
};

} // namespace

std::unique_ptr<const RowReader> open_parquet(const RetryingFile& file) {
  auto rows = std::make_unique<ParquetRows>(file);
  rows->count_rows([](uint64_t, const std::string&) {}); // the index has told it
  return rows;
}

void check_head_of_parquet(const RetryingFile& file) {
  read_metadata(file);
}

void scan_parquet(const RetryingFile& file, IndexWriter& index) {
  try {
    ParquetRows rows(file);
    const auto ends = rows.count_rows([&](uint64_t offset, std::string reason) {
      index.report({offset, std::move(reason)});
    });
    for (uint64_t i = 0; i < (ends.empty() ? 0 : ends.back()); ++i) index.add({.key = fmt::format("row {}", i)});
  } catch (const ReadError&) {
    throw;
  } catch (const Error& error) {
    if (!error.advice().empty()) // a whole file, of a kind that is not read
      throw Error(error.kind(), error.what()).at(file.path().string()).advise(error.advice());
    index.report({file.size(), error.what()});
  }
}

} // namespace fvlm
