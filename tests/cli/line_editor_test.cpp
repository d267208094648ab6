#include "base/error.h"
#include "base/file.h"
#include "base/scratch_folder.h"
#include "cli/line_editor.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace fvlm::cli {
namespace {

LineEditor::State type(LineEditor& editor, const std::string& keys) {
  auto state = LineEditor::State::editing;
  for (const char byte : keys) state = editor.feed(byte);
  return state;
}

std::string typed(const std::string& keys) {
  const LineHistory history;
  LineEditor editor(history);
  type(editor, keys);
  return editor.line();
}

TEST(LineEditor, KeysMoveAndErase) {
  EXPECT_EQ(typed("cat"), "cat");
  EXPECT_EQ(typed("ct\x1b[Da"), "cat"); // left
  EXPECT_EQ(typed("at\x01"
                  "c\x05!"),
            "cat!");                                          // Ctrl-A, Ctrl-E
  EXPECT_EQ(typed("at\x1b[Hc\x1b[F!"), "cat!");               // Home, End
  EXPECT_EQ(typed("at\x1bOHc\x1b[4~!"), "cat!");              // as other terminals send them
  EXPECT_EQ(typed("cart\x1b[D\x7f"), "cat");                  // backspace
  EXPECT_EQ(typed("cart\x1b[D\x1b[D\x1b[3~"), "cat");         // delete
  EXPECT_EQ(typed("the old  cat \x17"), "the old  ");         // Ctrl-W
  EXPECT_EQ(typed("the cat\x1b[D\x1b[D\x1b[D\x15"), "cat");   // Ctrl-U
  EXPECT_EQ(typed("cat and dog\x01\x06\x06\x06\x0b"), "cat"); // Ctrl-K
  EXPECT_EQ(typed("a\tb"), "a b");
  EXPECT_EQ(typed("c\x1b[1;5Cat\x1b[24~"), "cat") << "keys that mean nothing here leave nothing";
  EXPECT_EQ(typed("\x7f\x1b[D\x1b[C\x1b[3~\x17\x15\x0b"), "") << "in an empty line";
}

TEST(LineEditor, WhatIsPastedKeepsItsLinesAndTabs) {
  const LineHistory history;
  LineEditor editor(history);
  EXPECT_EQ(type(editor, "a\x1b[200~one\r\ttwo\n\x03\x1b[A\x15\x1b[201~b"), LineEditor::State::editing);
  EXPECT_EQ(editor.line(), "aone\n\ttwo\nb") << "as keys they would send, erase and recall";
  EXPECT_EQ(editor.shown("> ", 2, 80), "\r> aone\u21B5 two\u21B5b\x1b[K\r\x1b[13C");
  EXPECT_EQ(type(editor, "\x7f\x7f\tc\n"), LineEditor::State::complete);
  EXPECT_EQ(editor.line(), "aone\n\ttwo c");
  editor.clear();
  type(editor, "\x1b[200~x");
  editor.clear();
  EXPECT_EQ(type(editor, "\n"), LineEditor::State::complete) << "a new line is not pasted into";
}

TEST(LineEditor, CharactersAreWholeOnes) {
  EXPECT_EQ(typed("caf\u00e9\x7f"), "caf");
  EXPECT_EQ(typed("\u732b\u72ac\x1b[D\x7f"), "\u72ac");
  EXPECT_EQ(typed("\u732b\u72ac\x1b[D\x1b[3~"), "\u732b");
  EXPECT_EQ(typed("\U0001f600\x1b[Dx"), "x\U0001f600");
}

TEST(LineEditor, EndsWithEnterOrCtrlD) {
  const LineHistory history;
  LineEditor editor(history);
  EXPECT_EQ(type(editor, "\x04"), LineEditor::State::ended);
  EXPECT_EQ(type(editor, "ab\x1b[D\x04"), LineEditor::State::editing) << "in a line it deletes";
  EXPECT_EQ(editor.line(), "a");
  EXPECT_EQ(type(editor, "\r"), LineEditor::State::complete);
  editor.clear();
  EXPECT_EQ(editor.line(), "");
}

TEST(LineEditor, ArrowsRecallOlderLinesAndKeepTheNewOne) {
  LineHistory history;
  for (const char* line : {"one", "two", "two", "  ", "three"}) history.add(line);
  EXPECT_EQ(history.lines(), (std::vector<std::string>{"one", "two", "three"}));
  LineEditor editor(history);
  type(editor, "new\x1b[A\x1b[A");
  EXPECT_EQ(editor.line(), "two");
  type(editor, "\x1b[A\x1b[A\x1b[A");
  EXPECT_EQ(editor.line(), "one") << "there is none before the first";
  type(editor, "\x1b[B\x1b[B\x1b[B");
  EXPECT_EQ(editor.line(), "new");
  type(editor, "\x1b[B\x10!"); // Ctrl-P
  EXPECT_EQ(editor.line(), "three!");
  EXPECT_EQ(history.lines().back(), "three") << "a recalled line is a copy";
}

TEST(LineEditor, ShowsTheLineAroundTheCursor) {
  const LineHistory history;
  LineEditor editor(history);
  type(editor, "cat");
  EXPECT_EQ(editor.shown("> ", 2, 80), "\r> cat\x1b[K\r\x1b[5C");
  type(editor, "\x1b[D");
  EXPECT_EQ(editor.shown("> ", 2, 80), "\r> cat\x1b[K\r\x1b[4C");
  editor.clear();
  type(editor, "0123456789");
  EXPECT_EQ(editor.shown("> ", 2, 8), "\r> 56789\x1b[K\r\x1b[7C") << "five columns are left";
  type(editor, "\x01");
  EXPECT_EQ(editor.shown("> ", 2, 8), "\r> 01234\x1b[K\r\x1b[2C");
  editor.clear();
  type(editor, "\u732b\u732b\u732b");
  EXPECT_EQ(editor.shown("> ", 2, 8), "\r> \u732b\u732b\x1b[K\r\x1b[6C") << "each takes two columns";
}

TEST(LineHistory, IsKeptInAFileOfItsOwners) {
  const ScratchFolder folder;
  const auto file = folder / "history";
  {
    LineHistory history(file);
    history.add("one");
    history.add("two");
    history.add("pasted\nlines");
    EXPECT_EQ(history.lines().back(), "pasted\nlines");
  }
  EXPECT_EQ(read_file(file), "one\ntwo\n");
  EXPECT_EQ(std::filesystem::status(file).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  LineHistory history(file);
  EXPECT_EQ(history.lines(), (std::vector<std::string>{"one", "two"}));
}

TEST(LineHistory, KeepsTheNewestLines) {
  const ScratchFolder folder;
  const auto file = folder / "history";
  std::string text;
  for (size_t i = 0; i < LineHistory::max_lines + 5; ++i) text += std::to_string(i) + "\n";
  write_file_atomic(file, text);
  const LineHistory history(file);
  EXPECT_EQ(history.lines().size(), LineHistory::max_lines);
  EXPECT_EQ(history.lines().front(), "5");
  EXPECT_TRUE(read_file(file).starts_with("5\n6\n"));
}

TEST(LineHistory, SaysWhatFileItCannotKeep) {
  const ScratchFolder folder;
  try {
    const LineHistory history(folder / "nothing" / "history");
    FAIL() << "a folder that is not there";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::output);
    EXPECT_NE(std::string(error.what()).find("write the history"), std::string::npos) << error.what();
  }
}

} // namespace
} // namespace fvlm::cli
