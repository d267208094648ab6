// Preloaded into a program, makes it a server of its own forks, which have LibTorch loaded already: that takes most of
// the time of a short command, and tests start thousands of them. tests/forked_program.py is the client.
//
//   LD_PRELOAD=forked_program.so PROGRAM SOCKET [WORD...]   serves in the background until the process that called it
//   ends
//
// With words the program is called once before, for what it loads then. A client sends the size of its request with its
// standard streams, and then the request: the folder, the number of words, the words and the environment, each with a
// NUL behind it. It gets back what waitpid() says of the process.
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <string>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace {

using Main = int (*)(int, char**, char**);
Main program;
bool loading = false;
jmp_buf loaded;

void need(bool done, const char* what) {
  if (done) return;
  std::perror(what);
  _exit(1);
}

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

int call(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  return program(static_cast<int>(words.size()), arguments.data(), environ);
}

int process_handle(pid_t process) {
  return static_cast<int>(syscall(SYS_pidfd_open, process, 0));
}

// The path may be longer than the 107 bytes that a socket's address has.
int listen_at(const std::filesystem::path& path) {
  const int folder = open(path.parent_path().c_str(), O_PATH | O_DIRECTORY);
  need(folder >= 0, "the socket's folder");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = "/proc/self/fd/" + std::to_string(folder) + "/" + path.filename().string();
  need(name.size() < sizeof address.sun_path, "the socket's name");
  std::strcpy(address.sun_path, name.c_str());
  unlink(path.c_str());
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  need(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 && listen(listener, 64) == 0,
       "listen");
  close(folder);
  return listener;
}

struct Request {
  int streams[3];
  std::vector<std::string> parts;
};

Request receive(int client) {
  Request request{};
  uint64_t size = 0;
  iovec content{&size, sizeof size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof request.streams)];
  msghdr message{};
  message.msg_iov = &content;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  need(recvmsg(client, &message, MSG_WAITALL) == sizeof size && CMSG_FIRSTHDR(&message), "a request");
  std::memcpy(request.streams, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof request.streams);
  std::string text(size, '\0');
  need(recv(client, text.data(), size, MSG_WAITALL) == static_cast<ssize_t>(size), "a request's content");
  for (size_t begin = 0; begin < size;) {
    const size_t end = text.find('\0', begin);
    request.parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return request;
}

[[noreturn]] void become(const Request& request) {
  for (int i = 0; i < 3; ++i) need(dup2(request.streams[i], i) == i, "a standard stream");
  for (int stream : request.streams) close(stream);
  need(chdir(request.parts[0].c_str()) == 0, request.parts[0].c_str());
  clearenv();
  const auto words = request.parts.begin() + 2, variables = words + std::stol(request.parts[1]);
  for (auto variable = variables; variable != request.parts.end(); ++variable) {
    const size_t equals = variable->find('=', 1);
    setenv(variable->substr(0, equals).c_str(), variable->c_str() + equals + 1, 1);
  }
  std::exit(call({words, variables}));
}

// The program's process ends with the client.
[[noreturn]] void answer(int client) {
  const Request request = receive(client);
  const pid_t process = fork();
  need(process >= 0, "fork");
  if (process == 0) {
    close(client);
    become(request);
  }
  for (int stream : request.streams) close(stream);
  pollfd watched[] = {{process_handle(process), POLLIN, 0}, {client, POLLIN, 0}};
  while (poll(watched, 2, -1) < 0) {
  }
  if (!watched[0].revents) kill(process, SIGKILL);
  int status = 0;
  waitpid(process, &status, 0);
  send(client, &status, sizeof status, MSG_NOSIGNAL);
  _exit(0);
}

// What the program says goes nowhere. It may end by quick_exit(), which runs no destructors.
void load(const std::vector<std::string>& words) {
  const int kept[] = {dup(1), dup(2)}, nowhere = open("/dev/null", O_RDWR);
  for (int stream : {1, 2}) dup2(nowhere, stream);
  loading = true;
  if (setjmp(loaded) == 0) call(words);
  loading = false;
  for (int stream : {1, 2}) dup2(kept[stream - 1], stream), close(kept[stream - 1]);
  close(nowhere);
}

int serve(int count, char** words, char**) {
  need(count > 1, "a socket to serve at");
  const int caller = process_handle(getppid());
  if (count > 2) {
    std::vector<std::string> first{words[0]};
    first.insert(first.end(), words + 2, words + count);
    load(first);
  }
  need(dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD) != nullptr, "LibTorch is not loaded");
  const std::filesystem::directory_iterator threads("/proc/self/task");
  need(std::distance(begin(threads), end(threads)) == 1, "a fork has one thread alone");
  const int listener = listen_at(words[1]);
  if (fork() != 0) return 0;
  setsid();
  const int nowhere = open("/dev/null", O_RDWR);
  for (int stream = 0; stream < 3; ++stream) dup2(nowhere, stream);
  signal(SIGCHLD, SIG_IGN);
  while (true) {
    pollfd watched[] = {{caller, POLLIN, 0}, {listener, POLLIN, 0}};
    poll(watched, 2, -1);
    if (watched[0].revents) _exit(0);
    const int client = accept(listener, nullptr, nullptr);
    if (client >= 0 && fork() == 0) {
      close(listener);
      close(caller);
      signal(SIGCHLD, SIG_DFL);
      answer(client);
    }
    close(client);
  }
}

} // namespace

extern "C" {

__attribute__((visibility("default"), noreturn)) void quick_exit(int code) {
  if (loading) std::longjmp(loaded, 1);
  next<void (*)(int)>("quick_exit")(code);
  std::abort();
}

__attribute__((visibility("default"))) int __libc_start_main(Main main, int count, char** words, void (*begin)(),
                                                             void (*end)(), void (*end_of_loader)(), void* stack) {
  program = main;
  return next<decltype(&__libc_start_main)>("__libc_start_main")(serve, count, words, begin, end, end_of_loader, stack);
}

} // extern "C"
