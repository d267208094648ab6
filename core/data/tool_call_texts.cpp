#include "data/tool_call_texts.h"

#include "base/exact_json.h"
#include "base/utf8.h"

#include <algorithm>
#include <cctype>
#include <charconv>

namespace fvlm {
namespace {

using Json = nlohmann::ordered_json; // arguments come in the order in which the model writes them

constexpr size_t deepest = 64;

std::string_view stripped(std::string_view text) {
  constexpr const char* space = " \t\r\n";
  const size_t begin = text.find_first_not_of(space);
  return begin == text.npos ? "" : text.substr(begin, text.find_last_not_of(space) - begin + 1);
}

// The function of this name among those that may be called; null: none is known.
const Json* function_of(const Json* tools, std::string_view name) {
  if (!tools || !tools->is_array()) return nullptr;
  for (const Json& each : *tools) {
    const Json& function = each.is_object() && each.contains("function") ? each["function"] : each;
    if (function.is_object() && function.value("name", Json()) == name) return &function;
  }
  return nullptr;
}

std::optional<ToolCall> call_of(const Json& object) {
  const auto name = object.is_object() ? object.find("name") : object.end();
  if (!object.is_object() || name == object.end() || !name->is_string() || name->get<std::string>().empty()) return {};
  Json arguments = Json::object();
  for (const char* key : {"arguments", "parameters"})
    if (const auto found = object.find(key); found != object.end() && !found->is_null()) arguments = *found;
  if (arguments.is_string()) arguments = exact_json(arguments.get_ref<const std::string&>());
  if (!arguments.is_object()) return {};
  return ToolCall{name->get<std::string>(), exact_text(arguments)};
}

// JSON Schema's names of the types that a value has.
std::vector<std::string_view> types_of(const Json& value) {
  const bool is_long = value.is_binary() && exact_text(value).find_first_of(".eE") == std::string::npos;
  if (value.is_number_integer() || is_long) return {"integer", "number"};
  if (value.is_binary()) return {"number"};
  if (value.is_null()) return {"null"};
  return {value.type_name()};
}

// The types that the parameters of a tool say that their values may have.
class ParameterTypes {
 public:
  explicit ParameterTypes(const Json& parameters) : parameters_(parameters) {}

  bool admit(const Json& schema, const std::vector<std::string_view>& types) {
    if (!schema.is_object() || --left_ < 0) return false;
    if (const auto reference = schema.find("$ref"); reference != schema.end())
      if (const Json* const target = target_of(*reference)) return admit(*target, types);
    for (const char* list : {"anyOf", "oneOf", "allOf"})
      if (const auto branches = schema.find(list); branches != schema.end() && branches->is_array())
        return std::ranges::any_of(*branches, [&](const auto& branch) { return admit(branch, types); });
    const auto has = [&](const Json& type) {
      return type.is_string() && std::ranges::find(types, type.get_ref<const std::string&>()) != types.end();
    };
    if (const auto type = schema.find("type"); type != schema.end())
      return type->is_array() ? std::ranges::any_of(*type, has) : has(*type);
    const auto values = schema.find("enum");
    return values != schema.end() && values->is_array() &&
           std::ranges::any_of(*values, [&](const auto& value) { return std::ranges::any_of(types_of(value), has); });
  }

 private:
  const Json* target_of(const Json& reference) const {
    if (!reference.is_string() || !reference.get_ref<const std::string&>().starts_with("#/")) return nullptr;
    try {
      return &parameters_.at(Json::json_pointer(reference.get_ref<const std::string&>().substr(1)));
    } catch (const Json::exception&) { // there is no such place
      return nullptr;
    }
  }

  const Json& parameters_;
  int left_ = 1000; // schemas to look at, which may refer to themselves
};

// Whether the tool's schema says that a parameter is a text, where its value looks like this one.
bool is_text(const Json& value, const Json* tools, std::string_view tool, const std::string& parameter) {
  const Json* const function = function_of(tools, tool);
  if (!function) return false;
  const Json parameters = function->value("parameters", Json()),
             properties = parameters.is_object() ? parameters.value("properties", Json()) : parameters,
             own = properties.is_object() ? properties.value(parameter, Json()) : properties;
  return ParameterTypes(parameters).admit(own, {"string"}) &&
         (value.is_string() || !ParameterTypes(parameters).admit(own, types_of(value)));
}

// A value without quotes: of the type that it looks like, unless the tool says that it is a text and none such.
Json value_of(std::string_view text, const Json* tools, std::string_view tool, const std::string& parameter) {
  const std::string_view bare = stripped(text);
  const bool is_word = bare == "True" || bare == "False";
  Json value = is_word ? Json(bare == "True") : bare == "None" ? Json(nullptr) : exact_json(bare);
  if (value.is_discarded()) value = text;
  return is_text(value, tools, tool, parameter) ? Json(text) : value;
}

// Takes what stands between two marks, which have to come next but for white space.
std::optional<std::string_view> take_between(std::string_view& text, std::string_view begin, std::string_view end) {
  const std::string_view at = stripped(text);
  const size_t close = at.starts_with(begin) ? at.find(end, begin.size()) : at.npos;
  if (close == at.npos) return {};
  text = at.substr(close + end.size());
  return at.substr(begin.size(), close - begin.size());
}

// Qwen3.5's values stand on lines of their own.
std::string_view without_line_breaks(std::string_view value) {
  if (value.starts_with('\n')) value.remove_prefix(1);
  if (value.ends_with('\n')) value.remove_suffix(1);
  return value;
}

bool is_name(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](unsigned char byte) {
    return std::isalnum(byte) || byte == '_' || byte == '.' || byte == '-';
  });
}

// Reads values of two notations that are near JSON's: Python's, and Gemma 4's.
class Literals {
 public:
  explicit Literals(std::string_view text) : text_(text) {}

  void skip_space() {
    while (!text_.empty() && std::isspace(static_cast<unsigned char>(text_.front()))) text_.remove_prefix(1);
  }
  bool at_end() {
    skip_space();
    return text_.empty();
  }
  bool take(std::string_view mark) {
    skip_space();
    if (!text_.starts_with(mark)) return false;
    text_.remove_prefix(mark.size());
    return true;
  }
  // A name, such as get_weather or tools.search.
  std::string name() {
    skip_space();
    size_t end = 0;
    while (end < text_.size() && is_name(text_.substr(end, 1))) ++end;
    const std::string found(text_.substr(0, end));
    text_.remove_prefix(end);
    return found;
  }
  std::optional<Json> value(size_t depth = 0) {
    constexpr std::string_view quote = "<|\"|>";
    if (depth > deepest) return {};
    if (take(quote)) return until(quote);
    skip_space();
    if (text_.starts_with('"') || text_.starts_with('\'')) return quoted();
    if (take("[")) return list(depth);
    if (take("{")) return object(depth);
    return word();
  }
  // Behind the opening mark: "x", separator, value, and commas between, up to the closing one.
  std::optional<Json> members(std::string_view separator, std::string_view close, size_t depth) {
    Json out = Json::object();
    if (take(close)) return out;
    do {
      skip_space();
      const bool is_text = text_.starts_with('"') || text_.starts_with('\'') || text_.starts_with("<|");
      const auto spelled = is_text ? value(depth + 1) : std::nullopt;
      const std::string key = !is_text ? name() : spelled && spelled->is_string() ? spelled->get<std::string>() : "";
      if (key.empty() || !take(separator)) return {};
      auto member = value(depth + 1);
      if (!member) return {};
      out[key] = *std::move(member);
    } while (take(","));
    if (!take(close)) return {};
    return out;
  }

 private:
  std::optional<Json> until(std::string_view end) {
    const size_t at = text_.find(end);
    if (at == text_.npos) return {};
    Json found = text_.substr(0, at);
    text_.remove_prefix(at + end.size());
    return found;
  }
  std::optional<Json> quoted() {
    const char quote = text_.front();
    std::string out;
    for (text_.remove_prefix(1); !text_.empty();) {
      const char next = text_.front();
      if (next == '\\') {
        out += escaped();
        continue;
      }
      text_.remove_prefix(1);
      if (next == quote) return out;
      out += next;
    }
    return {};
  }
  // What Python reads for the backslash that comes next, and for what belongs to it. One that begins no escape stays.
  std::string escaped() {
    constexpr std::string_view letters = "abfnrtv\\'\"\n", meanings = "\a\b\f\n\r\t\v\\'\"";
    const size_t at = text_.size() > 1 ? letters.find(text_[1]) : letters.npos;
    if (at != letters.npos) {
      text_.remove_prefix(2);
      return std::string(meanings.substr(at, 1)); // none of a line break
    }
    auto point = numbered();
    if (!point) {
      text_.remove_prefix(1);
      return "\\";
    }
    const auto is_half = [](uint32_t half, uint32_t first) { return half >= first && half < first + 0x400; };
    if (is_half(*point, 0xD800)) { // of a pair, as JSON writes characters beyond 16 bits
      const std::string_view rest = text_;
      const auto low = numbered();
      if (low && is_half(*low, 0xDC00))
        point = 0x10000 + ((*point - 0xD800) << 10) + (*low - 0xDC00);
      else
        text_ = rest;
    }
    const bool is_alone = is_half(*point, 0xD800) || is_half(*point, 0xDC00);
    std::string out;
    append_utf8(out, is_alone ? 0xFFFD : *point);
    return out;
  }
  // \x41, \u00e9, \U0001f600, or up to three octal digits.
  std::optional<uint32_t> numbered() {
    const char kind = text_.size() > 1 && text_.front() == '\\' ? text_[1] : ' ';
    const bool is_octal = kind >= '0' && kind <= '7';
    const size_t most = is_octal ? 3 : kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
    if (most == 0) return {};
    const std::string_view digits = text_.substr(is_octal ? 1 : 2, most);
    uint32_t point = 0;
    const char* const begin = digits.data();
    const auto [end, error] = std::from_chars(begin, begin + digits.size(), point, is_octal ? 8 : 16);
    if ((!is_octal && end - begin != static_cast<ptrdiff_t>(most)) || point > 0x10FFFF) return {};
    text_.remove_prefix(static_cast<size_t>(end - text_.data()));
    return point;
  }
  std::optional<Json> list(size_t depth) {
    Json out = Json::array();
    if (take("]")) return out;
    do {
      auto item = value(depth + 1);
      if (!item) return {};
      out.push_back(*std::move(item));
    } while (take(","));
    if (!take("]")) return {};
    return out;
  }
  std::optional<Json> object(size_t depth) { return members(":", "}", depth); }
  // A number, or a word of Python or JSON.
  std::optional<Json> word() {
    const size_t end = std::min(text_.find_first_of(",)]} \n"), text_.size());
    const std::string_view found = text_.substr(0, end);
    text_.remove_prefix(end);
    if (found == "True" || found == "true") return true;
    if (found == "False" || found == "false") return false;
    if (found == "None" || found == "null") return nullptr;
    Json number = exact_json(found);
    if (!is_exact_number(number)) return {};
    return number;
  }
  std::string_view text_;
};

// An object with a name is an answer, too, where no tag says that it is a call.
bool is_call_without_tag(const Json& object, const Json* tools) {
  const auto name = object.find("name");
  return (object.contains("arguments") || object.contains("parameters")) &&
         (!tools || (name->is_string() && function_of(tools, name->get_ref<const std::string&>())));
}

// Where the first object or list of the text ends.
size_t end_of_value(std::string_view text) {
  size_t depth = 0;
  bool is_quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char byte = text[i];
    if (is_quoted && byte == '\\')
      ++i;
    else if (byte == '"')
      is_quoted = !is_quoted;
    else if (!is_quoted && (byte == '{' || byte == '['))
      ++depth;
    else if (!is_quoted && (byte == '}' || byte == ']') && --depth == 0)
      return i + 1;
  }
  return text.size();
}

ToolCalls read_objects(std::string_view text, bool has_tag, const Json* tools) {
  const Json found = exact_json(stripped(text));
  std::vector<ToolCall> calls;
  for (const Json& each : found.is_array() ? found : Json::array({found})) {
    auto call = call_of(each);
    if (!call || (!has_tag && !is_call_without_tag(each, tools))) return {};
    calls.push_back(*std::move(call));
  }
  if (calls.empty()) return {};
  return calls;
}

} // namespace

ToolCalls read_json_calls(std::string_view text, const Json* tools) {
  return read_objects(text, true, tools);
}

ToolCalls read_whole_call(std::string_view text, const Json* tools) {
  constexpr std::string_view tag = "<|python_tag|>";
  bool has_tag = false;
  std::vector<ToolCall> all;
  do {
    text = stripped(text);
    if (text.starts_with(tag)) {
      has_tag = true;
      text.remove_prefix(tag.size());
    }
    const size_t end = end_of_value(text);
    auto calls = read_objects(text.substr(0, end), has_tag, tools);
    text = stripped(text.substr(end));
    if (!calls || (!text.empty() && text.front() != ';')) return {};
    all.insert(all.end(), calls->begin(), calls->end());
    text.remove_prefix(text.empty() ? 0 : 1);
  } while (!stripped(text).empty());
  return all;
}

ToolCalls read_function_call(std::string_view text, const Json* tools) {
  const auto function = take_between(text, "<function=", "</function>");
  if (!function || !stripped(text).empty()) return {};
  const size_t name_end = function->find('>');
  if (name_end == function->npos) return {};
  const std::string name(stripped(function->substr(0, name_end)));
  Json arguments = Json::object();
  for (std::string_view rest = function->substr(name_end + 1); !stripped(rest).empty();) {
    const auto parameter = take_between(rest, "<parameter=", "</parameter>");
    const size_t key_end = parameter ? parameter->find('>') : std::string_view::npos;
    if (key_end == std::string_view::npos) return {};
    const std::string key(stripped(parameter->substr(0, key_end)));
    arguments[key] = value_of(without_line_breaks(parameter->substr(key_end + 1)), tools, name, key);
  }
  if (!is_name(name)) return {};
  return {{{name, exact_text(arguments)}}};
}

ToolCalls read_glm_call(std::string_view text, const Json* tools) {
  constexpr std::string_view first_key = "<arg_key>";
  const size_t name_end = std::min(text.find(first_key), text.size());
  const std::string name(stripped(text.substr(0, name_end)));
  if (!is_name(name)) return {};
  Json arguments = Json::object();
  for (std::string_view rest = text.substr(name_end); !stripped(rest).empty();) {
    const auto key = take_between(rest, first_key, "</arg_key>");
    const auto value = key ? take_between(rest, "<arg_value>", "</arg_value>") : std::nullopt;
    if (!value) return {};
    arguments[std::string(*key)] = value_of(*value, tools, name, std::string(*key));
  }
  return {{{name, exact_text(arguments)}}};
}

ToolCalls read_mistral_calls(std::string_view text, const Json* tools) {
  constexpr std::string_view begin = "[TOOL_CALLS]", arguments_mark = "[ARGS]", id_mark = "[CALL_ID]";
  if (stripped(text).starts_with('[') && text.find(arguments_mark) == text.npos) return read_json_calls(text, tools);
  std::vector<ToolCall> calls;
  while (!stripped(text).empty()) {
    const size_t next = std::min(text.find(begin), text.size());
    const std::string_view one = text.substr(0, next);
    text.remove_prefix(std::min(next + begin.size(), text.size()));
    const size_t mark = one.find(arguments_mark);
    const size_t brace = mark == one.npos ? one.find('{') : mark + arguments_mark.size();
    if (brace >= one.size()) return {};
    const std::string_view head = one.substr(0, mark == one.npos ? brace : mark);
    const std::string name(stripped(head.substr(0, head.find(id_mark))));
    const Json arguments = exact_json(stripped(one.substr(brace)));
    if (!is_name(name) || !arguments.is_object()) return {};
    calls.push_back({name, exact_text(arguments)});
  }
  if (calls.empty()) return {};
  return calls;
}

ToolCalls read_python_calls(std::string_view text, const Json*) {
  Literals in(text);
  const bool has_brackets = in.take("[");
  std::vector<ToolCall> calls;
  do {
    const std::string name = in.name();
    if (name.empty() || !in.take("(")) return {};
    const auto arguments = in.members("=", ")", 0);
    if (!arguments) return {};
    calls.push_back({name, exact_text(*arguments)});
  } while (in.take(","));
  if ((has_brackets && !in.take("]")) || !in.at_end()) return {};
  return calls;
}

ToolCalls read_gemma_call(std::string_view text, const Json*) {
  Literals in(text);
  if (!in.take("call:")) return {};
  const std::string name = in.name();
  if (name.empty() || !in.take("{")) return {};
  const auto arguments = in.members(":", "}", 0);
  if (!arguments || !in.at_end()) return {};
  return {{{name, exact_text(*arguments)}}};
}

} // namespace fvlm
