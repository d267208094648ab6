#include "grammar/json_schema.h"

#include "base/error.h"
#include "base/json.h"
#include "grammar/json_parts.h"
#include "grammar/number_range.h"
#include "grammar/pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace fvlm::grammar {
namespace {

using Json = nlohmann::ordered_json;
using Node = Grammar::Node;
using Rule = Grammar::Rule;

// Keywords that say nothing about which values are valid.
const std::set<std::string, std::less<>> annotations = {
    "title",    "description", "default", "examples", "$schema",     "$id",     "$comment",     "deprecated",
    "readOnly", "writeOnly",   "format",  "$defs",    "definitions", "$anchor", "discriminator"};

Error wrong(const std::string& where, const std::string& what) {
  return Error(ErrorKind::usage, "{}: {}", where.empty() ? "the schema" : "the schema's " + where, what);
}

// A schema at its place.
struct Place {
  const Json& schema;
  std::string where;
  Place at(const std::string& key) const { return {schema.at(key), where.empty() ? key : where + "." + key}; }
  Place at(const std::string& key, size_t index) const {
    return {schema.at(key).at(index), fmt::format("{}[{}]", at(key).where, index)};
  }
};

class Compiler {
 public:
  Compiler(Grammar& grammar, const Json& root) : g_(grammar), parts_(grammar), root_(root) {}

  // A value that is valid by the schema.
  Node value(const Place& place, Node next) {
    if (place.schema == Json(true)) return parts_.value(next);
    if (!place.schema.is_object()) throw wrong(place.where, "expected an object, or true");
    const auto [found, is_new] = rules_.try_emplace(&place.schema, 0);
    if (is_new) {
      constexpr int deepest = 200;
      if (++depth_ > deepest) throw wrong(place.where, fmt::format("more than {} schemas are in each other", deepest));
      const Rule rule = found->second = g_.new_rule();
      g_.define(rule, compiled(place));
      --depth_;
    }
    return g_.call(rules_.at(&place.schema), next);
  }

 private:
  // Which keywords of the schema have been seen to.
  class Keywords {
   public:
    explicit Keywords(const Place& place) : place_(place) {}
    const Json* find(const std::string& name) {
      seen_.insert(name);
      const auto found = place_.schema.find(name);
      return found == place_.schema.end() ? nullptr : &*found;
    }
    std::optional<int64_t> count(const std::string& name) {
      const Json* value = find(name);
      if (!value) return {};
      constexpr int64_t most = 10000;
      if (!value->is_number_integer() || *value < 0 || *value > most)
        throw wrong(place_.where, fmt::format("{}: expected a whole number from 0 to {}", name, most));
      return value->get<int64_t>();
    }
    void require_all_seen() const {
      for (const auto& [name, value] : place_.schema.items())
        if (!seen_.contains(name) && !annotations.contains(name))
          throw wrong(place_.where, fmt::format("'{}' is not supported here", name))
              .advise("leave it out, and check the answer for it");
    }

   private:
    const Place& place_;
    std::set<std::string> seen_;
  };

  Node compiled(const Place& place) {
    Keywords keywords(place);
    const Node all = compiled(place, keywords);
    keywords.require_all_seen();
    return all;
  }

  Node compiled(const Place& place, Keywords& keywords) {
    const Node end = Grammar::end;
    if (const Json* reference = keywords.find("$ref")) return value(referred(place, *reference), end);
    for (const char* name : {"anyOf", "oneOf", "allOf"})
      if (const Json* list = keywords.find(name)) {
        if (!list->is_array() || list->empty()) throw wrong(place.where, fmt::format("{}: expected a list", name));
        if (std::string_view(name) == "allOf" && list->size() > 1)
          throw wrong(place.where, "allOf of several schemas is not supported").advise("write them as one");
        return any(list->size(), [&](size_t i) { return value(place.at(name, i), end); });
      }
    const Json* const type = keywords.find("type");
    if (const Json* constant = keywords.find("const")) return one_of(place, "const", Json::array({*constant}), type);
    if (const Json* list = keywords.find("enum")) return one_of(place, "enum", *list, type);
    if (!type) {
      if (keywords.find("properties") || keywords.find("required")) return object(place, keywords);
      return keywords.find("items") || keywords.find("prefixItems") ? array(place, keywords) : parts_.value(end);
    }
    const Json types = type->is_array() ? *type : Json::array({*type});
    if (types.empty()) throw wrong(place.where, "type: expected a name, or a list of names");
    return any(types.size(), [&](size_t i) { return of_type(types[i], place, keywords); });
  }

  // Of the values that are of the type, where there is one.
  Node one_of(const Place& place, const char* keyword, const Json& values, const Json* type) {
    if (!values.is_array() || values.empty())
      throw wrong(place.where, fmt::format("{}: expected a list of values", keyword));
    std::vector<std::string> texts;
    for (const Json& value : values) {
      if (has_large_number(value))
        throw wrong(place.where, fmt::format("{}: {} has a number of more than 64 bits", keyword, written(value)))
            .advise("make it a text, or leave it out: JSON reads such numbers as others that are near");
      if (!type || is_of(value, *type)) texts.push_back(written(value));
    }
    if (texts.empty()) throw wrong(place.where, fmt::format("{}: expected a value of the schema's type", keyword));
    return any(texts.size(), [&](size_t i) { return g_.text(texts[i], Grammar::end); });
  }

  // An integer that neither 64 bits with a sign hold nor 64 without was read as a float, which cannot be told from
  // others.
  static bool has_large_number(const Json& value) {
    if (value.is_structured()) return std::ranges::any_of(value, has_large_number);
    if (!value.is_number_float()) return false;
    const auto number = value.get<double>();
    return number >= 0x1p64 || number <= -0x1p63;
  }

  static bool is_of(const Json& value, const Json& type) {
    if (type.is_array()) return std::ranges::any_of(type, [&](const Json& each) { return is_of(value, each); });
    return type == "integer" ? value.is_number_integer() : type == value.type_name();
  }

  template <class Option>
  Node any(size_t count, const Option& option) {
    Node all = option(0);
    for (size_t i = 1; i < count; ++i) all = g_.either(all, option(i));
    return all;
  }

  static std::string written(const Json& value) { return value.dump(-1, ' ', false); }

  Place referred(const Place& place, const Json& reference) {
    const std::string address = reference.is_string() ? reference.get<std::string>() : std::string();
    if (!address.starts_with("#") || (address.size() > 1 && address[1] != '/'))
      throw wrong(place.where, "$ref: expected a place in the schema itself, like \"#/$defs/name\"");
    try {
      return {root_.at(Json::json_pointer(address.substr(1))), address};
    } catch (const Json::exception&) {
      throw wrong(place.where, fmt::format("$ref: there is no {}", address));
    }
  }

  Node of_type(const Json& type, const Place& place, Keywords& keywords) {
    const Node end = Grammar::end;
    if (type == "object") return object(place, keywords);
    if (type == "array") return array(place, keywords);
    if (type == "string") return string(place, keywords);
    if (type == "integer" || type == "number") return number(place, keywords, type == "integer");
    if (type == "boolean") return g_.either(g_.text("true", end), g_.text("false", end));
    if (type == "null") return g_.text("null", end);
    throw wrong(place.where,
                fmt::format("type: expected object, array, string, integer, number, boolean or null, got {}",
                            type.dump(-1, ' ', true, Json::error_handler_t::replace)));
  }

  Node number(const Place& place, Keywords& keywords, bool is_integer) {
    NumberRange range;
    for (const char* name : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"})
      if (const Json* bound = keywords.find(name)) try {
          range.add(name, *bound);
        } catch (const Error& error) {
          throw wrong(place.where, error.what());
        }
    if (range.is_open()) return is_integer ? parts_.integer(Grammar::end) : parts_.number(Grammar::end);
    if (const auto node = number_in(range, g_, is_integer)) return *node;
    throw wrong(place.where, "no number is within its bounds");
  }

  Node string(const Place& place, Keywords& keywords) {
    if (const Json* pattern = keywords.find("pattern")) {
      if (!pattern->is_string()) throw wrong(place.where, "pattern: expected a text");
      try {
        const Node close = g_.text("\"", Grammar::end);
        return g_.text("\"", matching(pattern->get_ref<const std::string&>(), parts_, close));
      } catch (const Error& error) {
        throw wrong(place.where, error.what()).advise(error.advice());
      }
    }
    const auto fewest = keywords.count("minLength"), most = keywords.count("maxLength");
    if (!fewest && !most) return parts_.string(Grammar::end);
    require_room(place, "text", "characters", fewest.value_or(0), most);
    const auto one = [&](Node next) { return parts_.character(next); };
    return g_.text("\"", parts_.repeated(fewest.value_or(0), most, g_.text("\"", Grammar::end), one));
  }

  static void require_room(const Place& place, const char* what, const char* units, int64_t fewest,
                           std::optional<int64_t> most) {
    if (most && fewest > *most)
      throw wrong(place.where, fmt::format("no {} has {} {} or more, and {} at most", what, fewest, units, *most));
  }

  Node array(const Place& place, Keywords& keywords) {
    const Json* const items = keywords.find("items");
    const int64_t fewest = keywords.count("minItems").value_or(0);
    const auto most = keywords.count("maxItems");
    const auto item = [&](Node next) { return items ? value(place.at("items"), next) : parts_.value(next); };
    require_room(place, "list", "items", fewest, most);
    const Json* const first = keywords.find("prefixItems");
    if (!first) return parts_.listed("[]", fewest, most, Grammar::end, item);
    if (!first->is_array() || first->empty()) throw wrong(place.where, "prefixItems: expected a list of schemas");
    const int64_t count = std::ssize(*first);
    return with_first_items(place, count, fewest,
                            items && *items == Json(false) ? std::min(most.value_or(count), count) : most, item);
  }

  // The first items have a schema each, all others are `item(next)`.
  template <class Item>
  Node with_first_items(const Place& place, int64_t count, int64_t fewest, std::optional<int64_t> most,
                        const Item& item) {
    require_room(place, "list", "items", fewest, most);
    const auto behind_comma = [&](Node own) { return parts_.gap(g_.text(",", parts_.gap(own))); };
    const Node close = parts_.gap(g_.text("]", Grammar::end));
    Node behind = close;
    if (!most || *most > count)
      behind = parts_.repeated(std::max<int64_t>(fewest - count, 0), most ? std::optional(*most - count) : std::nullopt,
                               close, [&](Node next) { return behind_comma(item(next)); });
    for (int64_t i = std::min(count, most.value_or(count)) - 1; i >= 0; --i) {
      const Node own = value(place.at("prefixItems", static_cast<size_t>(i)), behind);
      const Node filled = i > 0 ? behind_comma(own) : parts_.gap(own);
      behind = i < fewest ? filled : g_.either(filled, close);
    }
    return g_.text("[", behind);
  }

  Node object(const Place& place, Keywords& keywords) {
    const Json* const properties = keywords.find("properties");
    const Json* const others = keywords.find("additionalProperties");
    std::set<std::string> required;
    if (const Json* list = keywords.find("required")) {
      if (!list->is_array()) throw wrong(place.where, "required: expected a list of names");
      for (const Json& name : *list) {
        if (!name.is_string()) throw wrong(place.where, "required: expected a list of names");
        required.insert(name.get<std::string>());
      }
    }
    if (properties && !properties->is_object()) throw wrong(place.where, "properties: expected an object");
    for (const std::string& name : required)
      if (!properties || !properties->contains(name))
        throw wrong(place.where, fmt::format("required: '{}' is not among its properties", name));
    if (properties && !properties->empty()) return with_properties(place, *properties, required);
    if (others == nullptr || *others == Json(true)) return parts_.object(Grammar::end);
    if (*others == Json(false)) return g_.text("{", parts_.gap(g_.text("}", Grammar::end)));
    return parts_.listed("{}", 0, {}, Grammar::end, [&](Node next) {
      return parts_.string(colon(value(place.at("additionalProperties"), next)));
    });
  }

  Node colon(Node next) { return parts_.gap(g_.text(":", parts_.gap(next))); }

  Node with_properties(const Place& place, const Json& properties, const std::set<std::string>& required) {
    const Node close = parts_.gap(g_.text("}", Grammar::end));
    const Place all = place.at("properties");
    // From the last property to the first: where one may begin behind others, and as the first one.
    Node behind = close, first = close;
    for (auto property = properties.rbegin(); property != properties.rend(); ++property) {
      const std::string& name = property.key();
      const Node own = parts_.gap(g_.text(written(name), colon(value(all.at(name), behind))));
      const Node with_comma = parts_.gap(g_.text(",", own));
      const bool may_lack = !required.contains(name);
      behind = may_lack ? g_.either(with_comma, behind) : with_comma;
      first = may_lack ? g_.either(own, first) : own;
    }
    return g_.text("{", first);
  }

  Grammar& g_;
  Parts parts_;
  const Json& root_;
  int depth_ = 0;
  std::map<const Json*, Rule> rules_; // of schemas by their place in the document
};

} // namespace

Grammar of_json_schema(const Json& schema) {
  Grammar grammar;
  const Rule whole = grammar.new_rule();
  grammar.define(whole, Compiler(grammar, schema).value({schema, ""}, Grammar::end));
  if (grammar.left_recursive_rule())
    throw Error(ErrorKind::usage, "the schema refers to itself where nothing stands between")
        .advise("a $ref to a schema around it belongs into its properties or items");
  if (grammar.is_endless())
    throw Error(ErrorKind::usage, "the schema asks for a value that never ends: it requires itself")
        .advise("make the property optional, or allow null with anyOf");
  return grammar;
}

Grammar of_json_schema(std::string_view text, const std::string& where) {
  (void)parse_json(text, where); // which is strict, and limits the depth
  return of_json_schema(Json::parse(text));
}

Grammar of_json_object() {
  Grammar grammar;
  const Rule whole = grammar.new_rule();
  grammar.define(whole, Parts(grammar).object(Grammar::end));
  return grammar;
}

Grammar of_choices(const std::vector<std::string>& texts) {
  if (texts.empty()) throw Error(ErrorKind::usage, "expected at least one text to choose");
  Grammar grammar;
  const Rule whole = grammar.new_rule();
  Node all = grammar.text(texts.front(), Grammar::end);
  for (size_t i = 1; i < texts.size(); ++i) all = grammar.either(all, grammar.text(texts[i], Grammar::end));
  grammar.define(whole, all);
  return grammar;
}

} // namespace fvlm::grammar
