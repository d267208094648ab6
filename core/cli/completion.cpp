// fvlm-engine completion: completion of the command line for bash, zsh and fish, written from the help of all verbs.
#include "base/text.h"
#include "cli/options.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::cli {
namespace {

// The verbs and, in place of a group, its members; or the groups.
std::vector<VerbHelp> commands_of(const std::vector<VerbHelp>& verbs) {
  std::vector<VerbHelp> commands;
  for (const VerbHelp& verb : verbs)
    if (verb.members.empty())
      commands.push_back(verb);
    else
      commands.insert(commands.end(), verb.members.begin(), verb.members.end());
  return commands;
}

std::vector<VerbHelp> groups_of(const std::vector<VerbHelp>& verbs) {
  std::vector<VerbHelp> groups;
  std::ranges::copy_if(verbs, std::back_inserter(groups), [](const VerbHelp& verb) { return !verb.members.empty(); });
  return groups;
}

std::string last_word(const VerbHelp& help) {
  return help.name.substr(help.name.rfind(' ') + 1);
}

std::string names_of(const std::vector<VerbHelp>& verbs) {
  std::vector<std::string> names;
  for (const VerbHelp& verb : verbs) names.push_back(last_word(verb));
  return join(names, " ");
}

// "cpu|cuda" offers both; of "auto|CHECKPOINT" the first is a word, and the other stands for a file.
std::vector<std::string> choices_of(const VerbHelp::Word& option) {
  std::vector<std::string> words = split(option.placeholder, '|');
  std::erase_if(words, [](const std::string& word) {
    return word.empty() || std::ranges::any_of(word, [](char c) {
             return !(c >= 'a' && c <= 'z') && !(c >= '0' && c <= '9') && c != '-' && c != '_';
           });
  });
  return words;
}

// Of the first positional, where it is one of a few words.
std::vector<std::string> first_choices(const VerbHelp& command) {
  return command.positionals.empty() ? std::vector<std::string>() : choices_of(command.positionals.front());
}

int64_t words_in(const VerbHelp& command) {
  return 1 + std::ranges::count(command.name, ' ');
}

std::string option_names(const VerbHelp& command) {
  std::string names;
  for (const VerbHelp::Word& option : command.options) names += "--" + option.name + " ";
  return names + "--help";
}

std::string bash(const std::vector<VerbHelp>& verbs) {
  std::string text = R"(# Completion of fvlm-engine for bash, written by `fvlm-engine completion bash`.
_fvlm_engine() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]} words=''
  COMPREPLY=()
  # bash cuts --option=value into three words.
  if [ "$current" = = ]; then current=''
  elif [ "$previous" = = ]; then previous=${COMP_WORDS[COMP_CWORD - 2]}
  fi
)";
  const std::string names = names_of(verbs);
  text += fmt::format("  if [ \"$COMP_CWORD\" = 1 ]; then words='{} help --help --version'\n", names);
  text += fmt::format("  elif [ \"$COMP_CWORD\" = 2 ] && [ \"$command\" = help ]; then words='{} --man'\n", names);
  text += "  elif [ \"$command\" = help ]; then\n    case \"$COMP_CWORD ${COMP_WORDS[2]}\" in\n";
  for (const VerbHelp& group : groups_of(verbs))
    text += fmt::format("      '3 {}') words='{}' ;;\n", group.name, names_of(group.members));
  text += "    esac\n  else\n    case $command in\n";
  for (const VerbHelp& group : groups_of(verbs))
    text +=
        fmt::format("      {0}) [ \"$COMP_CWORD\" = 2 ] && words='{1} --help'; command=\"{0} ${{COMP_WORDS[2]}}\" ;;\n",
                    group.name, names_of(group.members));
  text += "    esac\n    case \"$command $previous\" in\n";
  for (const VerbHelp& command : commands_of(verbs))
    for (const VerbHelp::Word& option : command.options)
      if (const auto choices = choices_of(option); !choices.empty())
        text += fmt::format("      '{} --{}') words='{}' ;;\n", command.name, option.name, join(choices, " "));
      else if (!option.placeholder.empty())
        text += fmt::format("      '{} --{}') return ;;\n", command.name, option.name);
  text += "    esac\n    if [ -z \"$words\" ] && [[ $current == -* ]]; then\n      case $command in\n";
  for (const VerbHelp& command : commands_of(verbs))
    text += fmt::format("        '{}') words='{}' ;;\n", command.name, option_names(command));
  text += "      esac\n    elif [ -z \"$words\" ]; then\n      case \"$command $COMP_CWORD\" in\n";
  for (const VerbHelp& command : commands_of(verbs))
    if (const std::string words = join(first_choices(command), " "); !words.empty())
      text += fmt::format("        '{} {}') words='{}' ;;\n", command.name, words_in(command) + 1, words);
  return text + R"(      esac
    fi
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o default -F _fvlm_engine fvlm-engine
)";
}

// Inside single quotes, as all three shells have them; fish knows no other way to write a quote in them.
std::string quoted(const std::string& text, const char* quote) {
  std::string out;
  for (const char c : text) {
    if (c == '\'')
      out += quote;
    else if (c == '\n')
      out += ' ';
    else
      out += c;
  }
  return "'" + out + "'";
}

std::string zsh_quoted(std::string text, const std::string& special) {
  for (size_t at = 0; (at = text.find_first_of(special, at)) != std::string::npos; at += 2) text.insert(at, "\\");
  return quoted(text, "'\\''");
}

std::string zsh_list(const std::vector<VerbHelp>& verbs) {
  std::string list;
  for (const VerbHelp& verb : verbs) list += fmt::format(" {}", zsh_quoted(last_word(verb) + ":" + verb.summary, "\\"));
  return list;
}

std::string zsh_arguments(const VerbHelp& command) {
  std::string text = fmt::format("    '{}') _arguments", command.name);
  for (const VerbHelp::Word& option : command.options) {
    std::string spec = fmt::format("'*--{}['{}']", option.name, zsh_quoted(option.help, "\\[]:"));
    if (!option.placeholder.empty()) {
      const auto choices = choices_of(option);
      spec += ":value:" + (choices.empty() ? "_files" : "(" + join(choices, " ") + ")");
    }
    text += " \\\n      " + spec + "'";
  }
  const std::string first = join(first_choices(command), " ");
  return text + " \\\n      '--help[print the page of this verb]' " +
         (first.empty() ? "" : "'1:word:(" + first + ")' ") + "'*:file:_files' ;;\n";
}

std::string zsh(const std::vector<VerbHelp>& verbs) {
  std::string text =
      "#compdef fvlm-engine\n# Completion of fvlm-engine for zsh, written by `fvlm-engine completion zsh`.\n"
      "_fvlm_engine() {\n  local command=$words[2] skipped=1\n  local -a offered\n"
      "  if (( CURRENT == 2 )); then\n    offered=(" +
      zsh_list(verbs) + " 'help:describe a verb')\n    _describe verb offered; return\n  fi\n";
  text += "  case $command in\n";
  text += fmt::format("    help) offered=({})\n      _describe verb offered; return ;;\n", zsh_list(verbs));
  for (const VerbHelp& group : groups_of(verbs))
    text +=
        fmt::format("    {0}) if (( CURRENT == 3 )); then offered=({1})\n        _describe verb offered; return; fi\n"
                    "      command=\"{0} $words[3]\" skipped=2 ;;\n",
                    group.name, zsh_list(group.members));
  text += "  esac\n  shift $skipped words; (( CURRENT -= skipped ))\n  case $command in\n";
  for (const VerbHelp& command : commands_of(verbs)) text += zsh_arguments(command);
  return text + "  esac\n}\nif [ \"$funcstack[1]\" = _fvlm-engine ]; then _fvlm_engine \"$@\"; "
                "else compdef _fvlm_engine fvlm-engine; fi\n";
}

std::string fish(const std::vector<VerbHelp>& verbs) {
  const char* quote = "\\'";
  std::string text = R"(# Completion of fvlm-engine for fish, written by `fvlm-engine completion fish`.
# Whether the command line begins with these words, and has so many.
function __fvlm_engine_runs
    set -l words (commandline -opc)
    set -e words[1]
    test (count $words) -ge (count $argv)
    and test (string join ' ' -- $words[1..(count $argv)]) = (string join ' ' -- $argv)
end
function __fvlm_engine_words
    test (count (commandline -opc)) = $argv[1]
end
complete -c fvlm-engine -l help -d 'print the page of this verb'
)";
  const auto offer = [&](const std::string& condition, const VerbHelp& verb) {
    text += fmt::format("complete -c fvlm-engine -n '{}' -f -a {} -d {}\n", condition, last_word(verb),
                        quoted(verb.summary, quote));
  };
  for (const VerbHelp& verb : verbs) {
    offer("__fvlm_engine_words 1", verb);
    offer("__fvlm_engine_runs help; and __fvlm_engine_words 2", verb);
    for (const VerbHelp& member : verb.members)
      offer(fmt::format("__fvlm_engine_runs {}; and __fvlm_engine_words 2", verb.name), member);
  }
  for (const VerbHelp& command : commands_of(verbs)) {
    if (const std::string words = join(first_choices(command), " "); !words.empty())
      text += fmt::format("complete -c fvlm-engine -n '__fvlm_engine_runs {}; and __fvlm_engine_words {}' -f -a '{}'\n",
                          command.name, words_in(command) + 1, words);
    for (const VerbHelp::Word& option : command.options) {
      const auto choices = choices_of(option);
      const std::string value = option.placeholder.empty() ? ""
                                : choices.empty()          ? " -r"
                                                           : " -x -a '" + join(choices, " ") + "'";
      text += fmt::format("complete -c fvlm-engine -n '__fvlm_engine_runs {}' -l {}{} -d {}\n", command.name,
                          option.name, value, quoted(option.help, quote));
    }
  }
  return text;
}

constexpr struct {
  const char* name;
  std::string (*text)(const std::vector<VerbHelp>& verbs);
} shells[] = {{"bash", bash}, {"zsh", zsh}, {"fish", fish}};

} // namespace

int run_completion(Arguments arguments) {
  Options options("completion bash|zsh|fish",
                  "Print completion of verbs, options and their values for a shell. An installation has it where the\n"
                  "shells look for it; to try it, or from another place: source <(fvlm-engine completion bash), the\n"
                  "same in zsh, and fvlm-engine completion fish | source in fish.",
                  "completion bash > ~/.local/share/bash-completion/completions/fvlm-engine");
  options.positional("SHELL", "bash, zsh or fish").choices("bash|zsh|fish");
  const auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  const std::string asked = *parsed->value("SHELL");
  const auto* shell = std::ranges::find_if(shells, [&](const auto& each) { return each.name == asked; });
  if (shell == std::end(shells))
    throw Error(ErrorKind::usage, "no completion for '{}'", asked).advise("one of: bash, zsh, fish");
  std::vector<VerbHelp> verbs;
  for (const Verb& verb : all_verbs()) verbs.push_back(describe(verb));
  fmt::print("{}", shell->text(verbs));
  return 0;
}

} // namespace fvlm::cli
