// The options of one verb: declared once, parsed, and printed by --help with an example first.
#pragma once
#include "base/error.h"
#include "cli/verb.h"

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::cli {

// Whether the verb that runs has --json and was given it: then its failure is a document, too.
bool json_requested();

class ParsedOptions {
 public:
  bool flag(const std::string& name) const;
  std::optional<std::string> value(const std::string& name) const;
  std::string value_or(const std::string& name, std::string fallback) const;
  std::vector<std::string> values(const std::string& name) const; // an option given several times, or the rest
  int64_t integer_or(const std::string& name, int64_t fallback) const;
  double number_or(const std::string& name, double fallback) const;

 private:
  friend class Options;
  std::map<std::string, std::vector<std::string>> values_;
};

class Options {
 public:
  // usage: "plan RECIPE [--diff OTHER]"; example: "plan recipes/quickstart.lua --set seed=7"
  Options(std::string usage, std::string summary, std::string example);

  Options& of_program(std::string name); // not fvlm-engine
  Options& positional(std::string name, std::string help, bool required = true);
  Options& rest(std::string name, std::string help); // any number of further positionals
  Options& flag(std::string name, std::string help);
  Options& value(std::string name, std::string placeholder, std::string help);  // repeatable; last wins in value()
  Options& needed(std::string name, std::string placeholder, std::string help); // the same, never missing

  // Empty when --help was asked for and printed. Throws Error(usage) with a suggestion.
  std::optional<ParsedOptions> parse(Arguments arguments) const;
  std::string help() const;

 private:
  using Words = std::map<std::string, std::vector<std::string>>; // by option
  struct Positional {
    std::string name, help;
    bool required, rest;
  };
  struct Named {
    std::string name, placeholder, help; // no placeholder: a flag
    bool required = false;
  };
  Words read(Arguments arguments) const; // those without a name: "positional"
  Words named_positionals(const std::vector<std::string>& given) const;
  Error misused(std::string what) const; // advises how the verb is used
  std::string program_ = "fvlm-engine", usage_, summary_, example_;
  std::vector<Positional> positionals_;
  std::vector<Named> named_;
};

} // namespace fvlm::cli
