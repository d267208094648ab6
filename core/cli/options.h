// The command-line options of one verb: declared once, then parsed, and printed by --help with an example first.
#pragma once
#include "base/error.h"
#include "cli/verb.h"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace fvlm::cli {

// Whether the running verb supports --json and got it: its failure is then printed as a JSON document, too.
bool json_requested();
// Notes that --json is among the words of a verb that does not exist.
void note_json_request(Arguments arguments);

// What a verb says of itself, from which its manual page and the completion of shells are written.
struct VerbHelp {
  struct Word {
    std::string name, placeholder, help; // a flag has no placeholder, a positional one where it has choices
  };
  std::string name, summary;               // "plugin list", and its line in the table of verbs
  std::string usage, description, example; // of a group: the description alone
  std::vector<Word> positionals, options;
  std::vector<VerbHelp> members; // of a group
};

// Calls a verb so that it describes itself and does nothing else. Verbs of the module load LibTorch for it. `prefix`:
// the words before its name, as "plugin ".
VerbHelp describe(const Verb& verb, const std::string& prefix = "");
VerbHelp* verb_being_described(); // null: the running verb does its work

class ParsedOptions {
 public:
  bool flag(const std::string& name) const;
  std::optional<std::string> value(const std::string& name) const;
  std::string value_or(const std::string& name, std::string default_value) const;
  std::vector<std::string> values(const std::string& name) const; // of a repeated option, or of remaining()
  // Throws Error(usage) for a number that is given and is below `min` or above `max`.
  int64_t integer_or(const std::string& name, int64_t default_value, int64_t min = INT64_MIN,
                     int64_t max = INT64_MAX) const;
  double number_or(const std::string& name, double default_value) const;
  // The named options as they were given, in the order of their names, but for these: "--seed 7 --stop a --stop b".
  std::string text_without(const std::set<std::string>& names) const;

 private:
  friend class Options;
  std::string shown_name(const std::string& name) const; // "--seed", or "N" of a positional
  std::set<std::string> positionals_;
  std::map<std::string, std::vector<std::string>> values_;
};

class Options {
 public:
  // `usage` is like "plan RECIPE [--diff OTHER]", `example` like "plan recipes/quickstart.lua --set seed=7".
  Options(std::string usage, std::string summary, std::string example);

  Options& of_program(std::string name); // of another program than fvlm-engine
  Options& positional(std::string name, std::string help, bool required = true);
  Options& choices(std::string choices);                  // "a|b|c", of the positional declared last
  Options& remaining(std::string name, std::string help); // any number of further positionals
  Options& flag(std::string name, std::string help);
  Options& value(std::string name, std::string placeholder, std::string help);          // given once at most
  Options& repeated_value(std::string name, std::string placeholder, std::string help); // see ParsedOptions::values()
  // One of "1|2|3", the first where the option is given without a value.
  Options& optional_value(std::string name, std::string choices, std::string help);
  Options& required_value(std::string name, std::string placeholder, std::string help);

  // Says what to write in place of an option that the verb does not have; empty: it does not know.
  using Advice = std::function<std::string(const std::string& name)>;
  Options& advise_by(Advice advice);

  // Returns nothing after printing the help page for --help, and in describe(). Throws Error(usage) with a suggestion.
  std::optional<ParsedOptions> parse(Arguments arguments) const;
  std::string help() const;

 private:
  using Words = std::map<std::string, std::vector<std::string>>; // option name -> values
  struct Positional {
    std::string name, help;
    bool required, takes_all;
    std::string choices = "";
  };
  struct Named {
    std::string name, placeholder, help;     // a flag has no placeholder
    bool required = false, optional = false; // optional: the value, which is one of the placeholder's
    bool repeated = false;
  };
  std::vector<std::string> with_default_values(Arguments arguments) const;
  static std::string shown_value(const Named& option);
  Words read(Arguments arguments) const; // positional arguments are under "positional"
  void refuse_missing_and_repeated(const Words& words) const;
  Words named_positionals(const std::vector<std::string>& given) const;
  Error usage_error(std::string what) const; // its advice is the usage line
  std::string advice_on_unknown(const std::string& option) const;
  void describe_in(VerbHelp& help) const;
  std::string program_ = "fvlm-engine", usage_, summary_, example_;
  std::vector<Positional> positionals_;
  std::vector<Named> named_;
  Advice advice_;
};

} // namespace fvlm::cli
