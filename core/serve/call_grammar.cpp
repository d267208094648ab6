#include "serve/call_grammar.h"

#include "base/error.h"
#include "data/tool_call_texts.h"
#include "grammar/json_parts.h"
#include "grammar/json_schema.h"
#include "serve/tool_fields.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <utility>

namespace fvlm::serve {
namespace {

using Ordered = nlohmann::ordered_json;
using grammar::Grammar;
using Node = Grammar::Node;

// No text in UTF-8 has these bytes.
constexpr std::array<std::string_view, 6> codes{"\xf8", "\xf9", "\xfa", "\xfb", "\xfc", "\xfd"};

// The tokens of the form's marks, by the place of their code.
std::vector<std::pair<std::string_view, std::optional<TokenId>>> marks_of(const Tokenizer& tokenizer,
                                                                          const ToolCallForm& form) {
  std::vector<std::pair<std::string_view, std::optional<TokenId>>> marks;
  const auto add = [&](std::string_view mark) { marks.emplace_back(mark, tokenizer.added_id(mark)); };
  add(form.begin);
  add(form.end);
  for (const char* mark : form.marks) add(mark);
  return marks;
}

class Calls {
 public:
  Calls(const Tokenizer& tokenizer, const ToolCallForm& form, const OfferedTools& tools, bool has_schemas)
      : form_(form), tools_(tools), has_schemas_(has_schemas), marks_(marks_of(tokenizer, form)), parts_(g_) {}

  Grammar made() {
    const Grammar::Rule whole = g_.new_rule(), call = g_.new_rule();
    g_.define(call, one());
    const bool is_list = form_.read == read_json_calls && !*form_.end;
    const Node again = g_.forward();
    Node behind = Grammar::end;
    if (tools_.parallel && !is_list) behind = g_.either(behind, mark(form_.begin, again));
    const Node begin = g_.call(call, mark(form_.end, parts_.gap(behind)));
    g_.lead(again, begin);
    const bool may_be_list = form_.read == read_mistral_calls;
    g_.define(whole, may_be_list ? g_.either(parts_.gap(list(parts_.gap(Grammar::end))), begin) : begin);
    return std::move(g_);
  }

 private:
  // What stands between two marks.
  Node one() {
    const Node end = Grammar::end;
    if (form_.read == read_json_calls && *form_.end) return parts_.gap(object(parts_.gap(end)));
    if (form_.read == read_json_calls) return parts_.gap(list(parts_.gap(end)));
    if (form_.read == read_mistral_calls)
      return any_tool([&](const Ordered& tool) {
        const Node arguments = mark("[ARGS]", g_.call(schema(tool), end));
        const Node id = parts_.repeated(9, 9, arguments, [&](Node next) { return name_byte(next); });
        return g_.text(name(tool), g_.either(arguments, mark("[CALL_ID]", id)));
      });
    if (form_.read == read_function_call)
      return parts_.gap(any_tool([&](const Ordered& tool) {
        const Node close = g_.text("</function>", parts_.gap(end));
        const Node all = parts_.repeated(0, most_parameters(tool), close, [&](Node next) {
          const Node value = until("</parameter>", parts_.gap(next));
          return g_.text("<parameter=", key(tool, g_.text(">", value)));
        });
        return g_.text("<function=" + name(tool) + ">", parts_.gap(all));
      }));
    if (form_.read == read_glm_call)
      return parts_.gap(any_tool([&](const Ordered& tool) {
        const Node all = parts_.repeated(0, most_parameters(tool), end, [&](Node next) {
          const Node value = parts_.gap(g_.text("<arg_value>", until("</arg_value>", parts_.gap(next))));
          return g_.text("<arg_key>", key(tool, g_.text("</arg_key>", value)));
        });
        return g_.text(name(tool), parts_.gap(all));
      }));
    value_ = g_.new_rule();
    const bool is_python = form_.read == read_python_calls;
    g_.define(value_, is_python ? python_value() : gemma_value());
    const auto call = [&](Node next) {
      return any_tool([&](const Ordered& tool) {
        const auto member = [&](Node rest) { return key(tool, g_.text(is_python ? "=" : ":", g_.call(value_, rest))); };
        return g_.text((is_python ? "" : "call:") + name(tool),
                       parts_.listed(is_python ? "()" : "{}", 0, most_parameters(tool), next, member));
      });
    };
    if (!is_python) return call(end);
    return parts_.listed("[]", 1, tools_.parallel ? std::nullopt : std::optional<int64_t>(1), end, call);
  }

  template <class Write>
  Node any_tool(const Write& write) {
    std::optional<Node> all;
    for (const Ordered& tool : tools_.list) all = all ? g_.either(*all, write(tool)) : write(tool);
    return *all;
  }

  // {"name": "f", "arguments": {...}}
  Node object(Node next) {
    return any_tool([&](const Ordered& tool) {
      const Node arguments = g_.call(schema(tool), parts_.gap(g_.text("}", next)));
      const Node second = parts_.gap(g_.text("\"arguments\"", colon(arguments)));
      const Node first = colon(g_.text(tool["function"]["name"].dump(), parts_.gap(g_.text(",", second))));
      return g_.text("{", parts_.gap(g_.text("\"name\"", first)));
    });
  }
  Node list(Node next) {
    const auto most = tools_.parallel ? std::nullopt : std::optional<int64_t>(1);
    return parts_.listed("[]", 1, most, next, [&](Node rest) { return object(rest); });
  }

  Grammar::Rule schema(const Ordered& tool) {
    if (const auto known = schemas_.find(&tool); known != schemas_.end()) return known->second;
    std::optional<Grammar> own;
    try {
      if (has_schemas_) own = grammar::of_json_schema(schema_of(tool));
    } catch (const Error&) { // the tool may be called as it could without a form
    }
    return schemas_[&tool] = g_.include(own ? *own : grammar::of_json_object());
  }

  static std::string name(const Ordered& tool) { return tool["function"]["name"].get<std::string>(); }

  // Nothing: any number.
  static std::optional<int64_t> most_parameters(const Ordered& tool) {
    const Ordered schema = schema_of(tool);
    const bool has_none = schema.value("properties", Ordered()).empty() &&
                          schema.value("additionalProperties", Ordered()) == Ordered(false);
    return has_none ? std::optional<int64_t>(0) : std::nullopt;
  }

  // The name of one of the tool's parameters, or any where it names none.
  Node key(const Ordered& tool, Node next) {
    const Ordered properties = schema_of(tool).value("properties", Ordered());
    if (!properties.is_object() || properties.empty())
      return parts_.repeated(1, 64, next, [&](Node rest) { return name_byte(rest); });
    std::optional<Node> all;
    for (const auto& [key, property] : properties.items()) {
      const Node own = g_.text(key, next);
      all = all ? g_.either(*all, own) : own;
    }
    return *all;
  }

  Node name_byte(Node next) {
    return g_.byte_of(grammar::byte_range('a', 'z') | grammar::byte_range('A', 'Z') | grammar::byte_range('0', '9') |
                          grammar::bytes_of("_"),
                      next);
  }
  Node colon(Node next) { return parts_.gap(g_.text(":", parts_.gap(next))); }

  Node mark(std::string_view text, Node next) {
    for (size_t i = 0; i < marks_.size(); ++i)
      if (marks_[i].first == text && marks_[i].second) return g_.text(codes.at(i), next);
    return g_.text(text, next);
  }

  // Any text up to `tag`, which it does not have within.
  Node until(std::string_view tag, Node next) {
    const grammar::ByteSet plain = grammar::byte_range(0x20, 0x7e) | grammar::bytes_of("\t\n\r");
    std::vector<Node> states; // by how much of the tag has been read
    for (size_t i = 0; i < tag.size(); ++i) states.push_back(g_.forward());
    for (size_t read = 0; read < tag.size(); ++read) {
      Node ways = parts_.beyond_ascii(states[0]);
      std::map<size_t, grammar::ByteSet> behind; // by how much has been read then
      for (size_t byte = 0; byte < plain.size(); ++byte)
        if (plain.test(byte)) behind[read_behind(tag, read, static_cast<char>(byte))].set(byte);
      for (const auto& [count, bytes] : behind)
        ways = g_.either(ways, g_.byte_of(bytes, count == tag.size() ? next : states[count]));
      g_.lead(states[read], ways);
    }
    return states[0];
  }
  static size_t read_behind(std::string_view tag, size_t read, char byte) {
    const std::string text = std::string(tag.substr(0, read)) + byte;
    size_t count = text.size();
    while (!text.ends_with(tag.substr(0, count))) --count;
    return count;
  }

  Node words(std::initializer_list<std::string_view> words) {
    Node all = parts_.number(Grammar::end);
    for (const std::string_view word : words) all = g_.either(all, g_.text(word, Grammar::end));
    return all;
  }
  Node nested(const std::function<Node(Node)>& key) {
    const Node end = Grammar::end;
    const auto value = [&](Node next) { return g_.call(value_, next); };
    return g_.either(parts_.listed("[]", 0, {}, end, value), parts_.listed("{}", 0, {}, end, [&](Node next) {
      return key(g_.text(":", parts_.gap(value(next))));
    }));
  }
  Node python_value() {
    const Node end = Grammar::end, close = g_.text("'", end);
    const grammar::ByteSet plain = grammar::byte_range(0x20, 0x7e) & ~grammar::bytes_of("'\\");
    const Node quoted = g_.text("'", parts_.repeated(0, {}, close, [&](Node next) {
      const Node escape = g_.text("\\", g_.byte_of(grammar::bytes_of("\\'\"nrt"), next));
      return g_.either(g_.byte_of(plain, next), g_.either(parts_.beyond_ascii(next), escape));
    }));
    return g_.either(
        g_.either(parts_.string(end), quoted),
        g_.either(words({"True", "False", "None"}), nested([&](Node next) { return parts_.string(next); })));
  }
  Node gemma_value() {
    constexpr std::string_view quote = "<|\"|>";
    const bool is_token =
        std::ranges::any_of(marks_, [&](const auto& own) { return own.first == quote && own.second; });
    const grammar::ByteSet plain = grammar::byte_range(0x20, 0x7e) | grammar::bytes_of("\t\n\r");
    const Node text =
        is_token
            ? parts_.repeated(0, {}, mark(quote, Grammar::end),
                              [&](Node next) { return g_.either(g_.byte_of(plain, next), parts_.beyond_ascii(next)); })
            : until(quote, Grammar::end);
    const auto key = [&](Node next) {
      return parts_.repeated(1, 64, next, [&](Node rest) { return name_byte(rest); });
    };
    return g_.either(mark(quote, text), g_.either(words({"true", "false", "null"}), nested(key)));
  }

  const ToolCallForm& form_;
  const OfferedTools& tools_;
  const bool has_schemas_;
  std::vector<std::pair<std::string_view, std::optional<TokenId>>> marks_;
  Grammar g_;
  grammar::Parts parts_;
  std::map<const Ordered*, Grammar::Rule> schemas_; // by their tool
  Grammar::Rule value_ = 0;
};

} // namespace

std::shared_ptr<const grammar::TokenTable> token_table_of_calls(const Tokenizer& tokenizer, const ToolCallForm& form) {
  const auto marks = marks_of(tokenizer, form);
  return std::make_shared<const grammar::TokenTable>(
      static_cast<int64_t>(tokenizer.size()), [&](int64_t id) -> std::string_view {
        const auto token = static_cast<TokenId>(id);
        for (size_t i = 0; i < marks.size(); ++i)
          if (marks[i].second == token) return codes.at(i);
        if (!tokenizer.has(token) || tokenizer.is_special(token)) return {};
        const std::string_view bytes = tokenizer.bytes_of(token);
        const bool has_code = std::ranges::any_of(bytes, [](char byte) { return static_cast<uint8_t>(byte) >= 0xf8; });
        return has_code ? std::string_view() : bytes; // of single bytes
      });
}

Grammar grammar_of_calls(const Tokenizer& tokenizer, const ToolCallForm& form, const OfferedTools& tools) {
  try {
    return Calls(tokenizer, form, tools, true).made();
  } catch (const Error&) { // the schemas are too large together
    return Calls(tokenizer, form, tools, false).made();
  }
}

} // namespace fvlm::serve
