#include "recipe/schema/values.h"

#include "recipe/schema/table.h"

#include <fmt/format.h>

#include <cmath>

namespace fvlm::recipe {
namespace {

class CurveType : public Type<plan::Curve> {
 public:
  explicit CurveType(Range range) : range_(range), number_(number(range)) {}
  std::string expected() const override {
    return number_->expected() + ", a list of such numbers or a function(progress) that returns one";
  }
  std::string lua_type() const override { return "number|number[]|fun(progress: number): number"; }
  bool accepts(const Value& value) const override {
    if (const Table* table = as_table(value)) return constructor_of(value).empty() && table->fields.empty();
    return std::holds_alternative<FunctionId>(value.data) || number_->accepts(value);
  }
  bool read(Reader& reader, const Value& value, plan::Curve& out) const override {
    reader.record_origin(value.origin);
    if (!accepts(value)) return reader.report_unexpected(value, expected());
    if (auto* function = std::get_if<FunctionId>(&value.data)) return sample(reader, *function, value.origin, out);
    const Table* table = as_table(value);
    std::vector<Value> one{value};
    const auto& values = table ? table->items : one;
    if (values.empty()) return reader.report_unexpected(value, expected());
    out.points.assign(values.size(), 0);
    bool good = true;
    for (size_t i = 0; i < values.size(); ++i) {
      auto read_point = [&] { return number_->read(reader, values[i], out.points[i]); };
      good &= table ? reader.within(index_part(i + 1), read_point) : read_point();
    }
    return good;
  }
  Json write(const plan::Curve& in, Write) const override {
    if (in.points.size() == 1) return in.points[0];
    return in.points;
  }

 private:
  bool sample(Reader& reader, FunctionId function, const Origin& origin, plan::Curve& out) const {
    out.points.clear();
    for (int i = 0; i < plan::Curve::sample_count; ++i) {
      double progress = i / double(plan::Curve::sample_count - 1), point = 0;
      size_t before = reader.mistakes.count();
      Value answer = reader.call(function, progress, origin);
      if (reader.mistakes.count() != before) return false;
      bool is_number = number_->accepts(answer);
      if (is_number) {
        auto* whole = std::get_if<int64_t>(&answer.data);
        point = whole ? static_cast<double>(*whole) : std::get<double>(answer.data);
      }
      if (!is_number || !std::isfinite(point) || !range_.holds(point))
        return reader.report(origin,
                             fmt::format("the function returns {} at progress {}", describe_value(answer), progress),
                             "it must return " + number_->expected());
      out.points.push_back(point);
    }
    return true;
  }

  Range range_;
  Ref<double> number_;
};

class PackTokensType : public Type<plan::PackTokens> {
 public:
  std::string expected() const override { return count_->expected() + R"(, "auto" or "memory")"; }
  std::string lua_type() const override { return count_->lua_type() + R"(|"auto"|"memory")"; }
  bool accepts(const Value& value) const override { return word_of(value) || count_->accepts(value); }
  bool read(Reader& reader, const Value& value, plan::PackTokens& out) const override {
    out = {};
    if (const auto word = word_of(value)) {
      reader.record_origin(value.origin);
      out.fill_memory = *word == memory;
      return true;
    }
    if (!count_->accepts(value)) {
      reader.record_origin(value.origin);
      return reader.report_unexpected(value, expected());
    }
    return count_->read(reader, value, out.count.emplace());
  }
  Json write(const plan::PackTokens& in, Write what) const override {
    if (in.count) return count_->write(*in.count, what);
    return in.fill_memory ? memory : automatic;
  }

 private:
  static constexpr const char *automatic = "auto", *memory = "memory";
  static const std::string* word_of(const Value& value) {
    const auto* text = std::get_if<std::string>(&value.data);
    return text && (*text == automatic || *text == memory) ? text : nullptr;
  }
  Ref<int64_t> count_ = integer(at_least(1));
};

class RecomputeType : public Type<plan::Recompute> {
 public:
  std::string expected() const override { return R"("none", "light", "all", { every = 2 } or { layers = { 0, 3 } })"; }
  std::string lua_type() const override { return R"("none"|"light"|"all"|{ every: integer }|{ layers: integer[] })"; }
  std::string plain_expected() const override { return R"("none", "light" or "all")"; }
  std::string plain_lua_type() const override { return R"("none"|"light"|"all")"; }
  bool accepts(const Value& value) const override {
    return as_table(value) || std::holds_alternative<std::string>(value.data);
  }
  bool read(Reader& reader, const Value& value, plan::Recompute& out) const override {
    reader.record_origin(value.origin);
    out = {};
    if (auto* text = std::get_if<std::string>(&value.data)) {
      if (*text != "none" && *text != "light" && *text != "all") return reader.report_unexpected(value, expected());
      out.light = *text == "light";
      out.every = *text == "all" ? 1 : 0;
      return true;
    }
    const Table* table = as_table(value);
    if (!table || !table->items.empty() || table->fields.size() != 1)
      return reader.report_unexpected(value, expected());
    const std::string& key = table->fields[0].first;
    const Value& part = table->fields[0].second;
    if (key == "every") return reader.within(".every", [&] { return every_->read(reader, part, out.every); });
    if (key != "layers") return reader.report_unexpected(value, expected());
    const Table* layers = as_table(part);
    if (!layers || layers->items.empty() || !layers->fields.empty()) return reader.report_unexpected(value, expected());
    out.layers.assign(layers->items.size(), 0);
    bool good = true;
    for (size_t i = 0; i < layers->items.size(); ++i)
      good &= reader.within(".layers" + index_part(i + 1),
                            [&] { return layer_->read(reader, layers->items[i], out.layers[i]); });
    return good;
  }
  Json write(const plan::Recompute& in, Write) const override {
    if (!in.layers.empty()) return {{"layers", in.layers}};
    if (in.every > 1) return {{"every", in.every}};
    return in.every == 1 ? "all" : in.light ? "light" : "none";
  }

 private:
  Ref<int64_t> every_ = integer(at_least(1)), layer_ = integer(at_least(0));
};

class LuaFunctionType : public Type<plan::LuaFunction> {
 public:
  explicit LuaFunctionType(std::string signature) : signature_(std::move(signature)) {}
  std::string expected() const override { return "a function"; }
  std::string lua_type() const override { return signature_; }
  bool accepts(const Value& value) const override {
    if (std::holds_alternative<FunctionId>(value.data)) return true;
    const Table* written = as_table(value); // in a plan file
    return written && find_field(*written, "index") && find_field(*written, "code");
  }
  bool read(Reader& reader, const Value& value, plan::LuaFunction& out) const override {
    reader.record_origin(value.origin);
    if (auto* function = std::get_if<FunctionId>(&value.data)) {
      out = {function->index, where(value.origin), ""};
      return true;
    }
    const Table* table = reader.reads_plan_file ? as_table(value) : nullptr;
    if (!table) return reader.report_unexpected(value, expected());
    const Value* index = find_field(*table, "index");
    bool complete = index && index_->accepts(*index) && read_text(*table, "defined", out.defined) &&
                    read_text(*table, "code", out.code);
    return complete ? index_->read(reader, *index, out.index)
                    : reader.report_unexpected(value, "index, defined and code of a function");
  }
  Json write(const plan::LuaFunction& in, Write what) const override {
    Json json = {{"index", in.index}, {"code", in.code}};
    if (what == Write::everything) json["defined"] = in.defined;
    return json;
  }

 private:
  static bool read_text(const Table& table, const char* key, std::string& out) {
    const Value* value = find_field(table, key);
    auto* text = value ? std::get_if<std::string>(&value->data) : nullptr;
    if (text) out = *text;
    return text != nullptr;
  }

  std::string signature_;
  Ref<int64_t> index_ = integer(at_least(0));
};

} // namespace

Ref<plan::Curve> curve(Range range) {
  return make_type<CurveType>(range);
}

Ref<plan::Recompute> recompute() {
  return make_type<RecomputeType>();
}

Ref<plan::PackTokens> pack_tokens() {
  return make_type<PackTokensType>();
}

Ref<plan::LuaFunction> lua_function(std::string signature) {
  return make_type<LuaFunctionType>(std::move(signature));
}

} // namespace fvlm::recipe
