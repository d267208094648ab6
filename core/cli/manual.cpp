#include "cli/manual.h"

#include "cli/options.h"

#include <fmt/format.h>

namespace fvlm::cli {
namespace {

// A backslash, and a dot or quote at the beginning of a line, are troff's own; a plain '-' becomes a hyphen.
std::string troff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool begins_line = out.empty() || out.back() == '\n';
    if (begins_line && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  }
  return out;
}

// Line breaks of a usage stay where they are.
std::string synopsis(const std::string& usage) {
  return fmt::format(".nf\n\\fBfvlm\\-engine\\fR {}\n.fi\n", troff(usage));
}

void append_words(std::string& page, const std::vector<VerbHelp::Word>& words, const char* dashes) {
  for (const VerbHelp::Word& word : words) {
    const std::string placeholder = word.placeholder.empty() ? "" : " \\fI" + troff(word.placeholder) + "\\fR";
    page += fmt::format(".TP\n\\fB{}{}\\fR{}\n{}\n", troff(dashes), troff(word.name), placeholder, troff(word.help));
  }
}

void append_verb(std::string& page, const VerbHelp& help) {
  page += fmt::format(".SS {}\n{}\n", troff(help.name), troff(help.description));
  if (!help.usage.empty()) page += ".PP\n" + synopsis(help.usage);
  append_words(page, help.positionals, "");
  append_words(page, help.options, "--");
  if (!help.example.empty())
    page += fmt::format(".PP\nExample:\n.PP\n.RS\n.nf\nfvlm\\-engine {}\n.fi\n.RE\n", troff(help.example));
  for (const VerbHelp& member : help.members) append_verb(page, member);
}

constexpr const char* head = R"(.SH NAME
fvlm\-engine \- train, quantize and serve small vision\-language models
.SH SYNOPSIS
\fBfvlm\-engine\fR \fIVERB\fR [\fIARGUMENTS\fR]
.br
\fBfvlm\-engine\fR \fBhelp\fR [\fIVERB\fR | \fB\-\-man\fR]
.br
\fBfvlm\-engine\fR \fB\-\-version\fR [\fB\-\-json\fR]
.SH DESCRIPTION
A Lua recipe describes the stages of a training; the engine checks it whole before anything runs, trains in a run folder
that survives a kill at any instant, and loads its kernels, losses, optimizers, packers, quantizers and video readers as
plugins.
Results go to standard output, messages to standard error. With \fB\-\-json\fR a verb prints one document, of a
failure, too.
.SH VERBS
)";

constexpr const char* tail = R"(.SH EXIT STATUS
0 done; 1 a defect in fvlm\-engine; 2 usage; 3 recipe; 4 data; 5 plugin; 6 device or LibTorch; 7 output cannot be
written; 8 training diverged; 75 stopped, and the same command resumes.
.SH ENVIRONMENT
.TP
\fBFVLM_TORCH\fR
the folder site\-packages/torch of a torch 2.11, in place of the search for one
.TP
\fBFVLM_PLUGIN_PATH\fR
folders of plugins, separated by colons
.TP
\fBFVLM_CACHE\fR
the folder of caches; default ~/.cache/fvlm\-engine
.TP
\fBFVLM_THREADS\fR
threads of plugins on a CPU
.TP
\fBFVLM_PORTABLE_KERNELS\fR
1: on a Hopper, the kernels of other GPUs, to test and time them
.TP
\fBCUDA_VISIBLE_DEVICES\fR
which GPU is the first one, which \fB\-\-device cuda\fR uses
.TP
\fBNO_COLOR\fR
plain output, also on a terminal
)";

} // namespace

std::string manual_page() {
  std::string page = fmt::format(".TH FVLM\\-ENGINE 1 \"\" \"fvlm\\-engine {}\" \"User Commands\"\n", FVLM_VERSION);
  page += ".ad l\n.nh\n"; // long words of the command line stay whole, and so lines would have wide gaps
  page += head;
  for (const Verb& verb : all_verbs()) append_verb(page, describe(verb));
  return page + tail;
}

} // namespace fvlm::cli
