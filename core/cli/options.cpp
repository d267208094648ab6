#include "cli/options.h"

#include "base/terminal.h"
#include "base/text.h"

#include <boost/program_options.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace fvlm::cli {
namespace po = boost::program_options;

namespace {
bool json_was_requested = false;
VerbHelp* being_described = nullptr;

// The words that a usage begins with, such as `data show` of `data show RECIPE N`. None of a program without verbs.
std::string verb_of(const std::string& usage) {
  std::string verb;
  for (const std::string& word : split(usage, ' ')) {
    if (word.empty() || word[0] < 'a' || word[0] > 'z') break;
    verb += (verb.empty() ? "" : " ") + word;
  }
  return verb;
}
} // namespace

VerbHelp* verb_being_described() {
  return being_described;
}

VerbHelp describe(const Verb& verb, const std::string& prefix) {
  VerbHelp help;
  help.name = prefix + verb.name;
  help.summary = verb.summary;
  VerbHelp* const outer = std::exchange(being_described, &help);
  try {
    verb.run({});
  } catch (...) {
    being_described = outer;
    throw;
  }
  being_described = outer;
  return help;
}

bool json_requested() {
  return json_was_requested;
}

void note_json_request(Arguments arguments) {
  json_was_requested = std::ranges::find(arguments, "--json") != arguments.end();
}

bool ParsedOptions::flag(const std::string& name) const {
  return values_.contains(name);
}

std::vector<std::string> ParsedOptions::values(const std::string& name) const {
  auto found = values_.find(name);
  return found == values_.end() ? std::vector<std::string>{} : found->second;
}

std::optional<std::string> ParsedOptions::value(const std::string& name) const {
  auto all = values(name);
  if (all.empty()) return std::nullopt;
  return all.back();
}

std::string ParsedOptions::value_or(const std::string& name, std::string default_value) const {
  return value(name).value_or(std::move(default_value));
}

namespace {

template <class Number>
Number parsed_number(const std::string& name, const std::string& text, const char* expected) {
  Number number = 0;
  const char* text_end = text.data() + text.size();
  auto [end, error] = std::from_chars(text.data(), text_end, number);
  if (error != std::errc{} || end != text_end)
    throw Error(ErrorKind::usage, "{}: expected {}, got '{}'", name, expected, text);
  return number;
}

} // namespace

std::string ParsedOptions::shown_name(const std::string& name) const {
  return positionals_.contains(name) ? name : "--" + name;
}

int64_t ParsedOptions::integer_or(const std::string& name, int64_t default_value, int64_t min, int64_t max) const {
  const auto text = value(name);
  if (!text) return default_value;
  const auto number = parsed_number<int64_t>(shown_name(name), *text, "an integer");
  if (number >= min && number <= max) return number;
  const std::string range = max == INT64_MAX ? fmt::format("{} or more", min) : fmt::format("{} to {}", min, max);
  throw Error(ErrorKind::usage, "{}: expected {}, got {}", shown_name(name), range, number);
}

double ParsedOptions::number_or(const std::string& name, double default_value) const {
  auto text = value(name);
  return text ? parsed_number<double>(shown_name(name), *text, "a number") : default_value;
}

std::string ParsedOptions::text_without(const std::set<std::string>& names) const {
  std::string text;
  for (const auto& [name, values] : values_) {
    if (positionals_.contains(name) || names.contains(name)) continue;
    for (const std::string& value : values)
      text += fmt::format("{}--{}{}{}", text.empty() ? "" : " ", name, value.empty() ? "" : " ", value);
  }
  return text;
}

Options::Options(std::string usage, std::string summary, std::string example)
    : usage_(std::move(usage)), summary_(std::move(summary)), example_(std::move(example)) {}

Options& Options::of_program(std::string name) {
  program_ = std::move(name);
  return *this;
}

Options& Options::positional(std::string name, std::string help, bool required) {
  positionals_.push_back({std::move(name), std::move(help), required, false});
  return *this;
}

Options& Options::choices(std::string choices) {
  positionals_.back().choices = std::move(choices);
  return *this;
}

Options& Options::remaining(std::string name, std::string help) {
  positionals_.push_back({std::move(name), std::move(help), false, true});
  return *this;
}

Options& Options::flag(std::string name, std::string help) {
  named_.push_back({std::move(name), "", std::move(help)});
  return *this;
}

Options& Options::value(std::string name, std::string placeholder, std::string help) {
  named_.push_back({std::move(name), std::move(placeholder), std::move(help)});
  return *this;
}

Options& Options::repeated_value(std::string name, std::string placeholder, std::string help) {
  value(std::move(name), std::move(placeholder), std::move(help));
  named_.back().repeated = true;
  return *this;
}

Options& Options::optional_value(std::string name, std::string choices, std::string help) {
  named_.push_back({std::move(name), std::move(choices), std::move(help), false, true});
  return *this;
}

Options& Options::advise_by(Advice advice) {
  advice_ = std::move(advice);
  return *this;
}

Options& Options::required_value(std::string name, std::string placeholder, std::string help) {
  named_.push_back({std::move(name), std::move(placeholder), std::move(help), true});
  return *this;
}

Error Options::usage_error(std::string what) const {
  Error error(ErrorKind::usage, std::move(what));
  error.advise("usage: " + program_ + " " + usage_);
  return error;
}

// Of an option by another spelling, a positional that is written as an option, an option of other programs, and one
// that is mistyped. Empty: nothing is like it.
std::string Options::advice_on_unknown(const std::string& option) const {
  const auto plain = [](std::string name) {
    std::erase_if(name, [](char c) { return c == '-' || c == '_'; });
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    return name;
  };
  std::vector<std::string> names{"--help"};
  for (const auto& each : named_) {
    names.push_back("--" + each.name);
    if (plain(option) == plain(each.name)) return fmt::format("did you mean '{}'?", names.back());
  }
  for (const auto& positional : positionals_)
    if (const size_t at = usage_.find(positional.name); plain(option) == plain(positional.name) && at != usage_.npos)
      return fmt::format("write it without {}: {} {}", option, program_, usage_.substr(0, at + positional.name.size()));
  const size_t name = std::min(option.find_first_not_of('-'), option.size());
  if (std::string advice = advice_ ? advice_(option.substr(name)) : ""; !advice.empty()) return advice;
  const auto near = nearest(option, names);
  return near ? fmt::format("did you mean '{}'?", *near) : "";
}

// "--zero" as "--zero=1", and "--zero 2" as "--zero=2".
std::vector<std::string> Options::with_default_values(Arguments arguments) const {
  std::vector<std::string> words;
  for (size_t i = 0; i < arguments.size(); ++i) {
    words.emplace_back(arguments[i]);
    const auto option = std::ranges::find_if(
        named_, [&](const Named& each) { return each.optional && words.back() == "--" + each.name; });
    if (option == named_.end()) continue;
    const auto choices = split(option->placeholder, '|');
    const bool is_given = i + 1 < arguments.size() && std::ranges::find(choices, arguments[i + 1]) != choices.end();
    words.back() += "=" + std::string(is_given ? arguments[++i] : choices.front());
  }
  return words;
}

Options::Words Options::read(Arguments arguments) const {
  po::options_description described;
  described.add_options()("help,h", "");
  for (const auto& option : named_) {
    if (option.placeholder.empty())
      described.add_options()(option.name.c_str(), "");
    else
      described.add_options()(option.name.c_str(), po::value<std::vector<std::string>>()->composing(), "");
  }
  described.add_options()("positional", po::value<std::vector<std::string>>(), "");
  po::positional_options_description order;
  order.add("positional", -1);

  po::variables_map found;
  try {
    const std::vector<std::string> words = with_default_values(arguments);
    using namespace po::command_line_style;
    auto parsed = po::command_line_parser(words)
                      .options(described)
                      .positional(order)
                      .style(allow_long | long_allow_adjacent | long_allow_next | allow_short | short_allow_next |
                             allow_dash_for_short)
                      .run();
    po::store(parsed, found);
  } catch (const po::unknown_option& unknown) {
    const std::string verb = verb_of(usage_);
    Error error =
        usage_error(fmt::format("{} has no option '{}'", verb.empty() ? program_ : verb, unknown.get_option_name()));
    if (const auto advice = advice_on_unknown(unknown.get_option_name()); !advice.empty()) error.advise(advice);
    throw error;
  } catch (const po::invalid_command_line_syntax& wrong) {
    std::string name = wrong.get_option_name().substr(2);
    auto option = std::ranges::find(named_, name, &Named::name);
    if (option == named_.end() || option->placeholder.empty())
      throw usage_error(fmt::format("--{} takes no value", name));
    throw Error(ErrorKind::usage, "--{} needs a value", name)
        .advise("--{} {}: {}", name, option->placeholder, option->help);
  } catch (const po::error& wrong) {
    throw usage_error(wrong.what());
  }
  Words words;
  for (const auto& [name, value] : found) {
    const auto* given = boost::any_cast<std::vector<std::string>>(&value.value());
    words[name] = given ? *given : std::vector<std::string>{};
  }
  return words;
}

Options::Words Options::named_positionals(const std::vector<std::string>& given) const {
  Words words;
  size_t next = 0;
  for (const auto& positional : positionals_) {
    if (positional.takes_all) {
      words[positional.name].assign(given.begin() + static_cast<std::ptrdiff_t>(next), given.end());
      next = given.size();
    } else if (next < given.size()) {
      words[positional.name] = {given[next++]};
    } else if (positional.required) {
      throw usage_error(fmt::format("{} is missing: {}", positional.name, positional.help));
    }
  }
  if (next < given.size()) throw usage_error(fmt::format("unexpected argument '{}'", given[next]));
  return words;
}

void Options::describe_in(VerbHelp& help) const {
  help.usage = usage_;
  help.description = summary_;
  help.example = example_;
  for (const auto& positional : positionals_)
    help.positionals.push_back({positional.name, positional.choices, positional.help});
  for (const auto& option : named_) help.options.push_back({option.name, option.placeholder, option.help});
}

void Options::refuse_missing_and_repeated(const Words& words) const {
  for (const Named& option : named_) {
    const auto given = words.find(option.name);
    if (given == words.end()) {
      if (option.required) throw usage_error(fmt::format("--{} is missing: {}", option.name, option.help));
    } else if (given->second.size() > 1 && !option.repeated) {
      throw Error(ErrorKind::usage, "--{} takes one value, and was given {}: '{}'", option.name, given->second.size(),
                  fmt::join(given->second, "', '"))
          .advise("leave all but one of them out");
    }
  }
}

std::optional<ParsedOptions> Options::parse(Arguments arguments) const {
  if (being_described) {
    describe_in(*being_described);
    return std::nullopt;
  }
  const bool has_json = std::ranges::any_of(named_, [](const Named& each) { return each.name == "json"; });
  json_was_requested = has_json && std::ranges::find(arguments, "--json") != arguments.end();
  Words words = read(arguments);
  if (words.contains("help")) {
    fmt::print("{}", help());
    return std::nullopt;
  }
  refuse_missing_and_repeated(words);
  ParsedOptions result;
  for (const auto& positional : positionals_) result.positionals_.insert(positional.name);
  const auto positionals = words.extract("positional");
  result.values_ = named_positionals(positionals ? positionals.mapped() : std::vector<std::string>{});
  result.values_.merge(words);
  return result;
}

std::string Options::shown_value(const Named& option) {
  if (option.optional) return " [" + option.placeholder + "]";
  return option.placeholder.empty() ? "" : " " + option.placeholder;
}

std::string Options::help() const {
  std::string out =
      fmt::format("{}\n\n  {}\n\n{}\n  {} {}\n", styled("Example", Style::bold),
                  styled(program_ + " " + example_, Style::cyan), styled("Usage", Style::bold), program_, usage_);
  out += fmt::format("\n{}\n", summary_);
  size_t width = 0;
  std::vector<std::pair<std::string, std::string>> rows;
  for (const auto& positional : positionals_) rows.emplace_back(positional.name, positional.help);
  for (const auto& option : named_) rows.emplace_back("--" + option.name + shown_value(option), option.help);
  rows.emplace_back("--help", "print this page");
  for (const auto& [left, right] : rows) width = std::max(width, left.size());
  out += '\n';
  for (const auto& [left, right] : rows) out += fmt::format("  {:<{}}  {}\n", left, width, right);
  return out;
}

} // namespace fvlm::cli
