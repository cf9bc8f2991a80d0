// try: the judge of an exercise (try.h). It hears of every access that a kernel makes to global memory: what lies
// outside an array or was not written yet is named with its line, and the bytes that move are counted.
#include "tests/exercises/try.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <csignal>
#include <fstream>
#include <cstring>
#include <map>
#include <set>

#include "core/check.h"
#include "core/race_shadow.h"
#include "core/source_line.h"
#include "tests/numbers.h"

namespace gated {
namespace {

constexpr size_t room = 1 << 16;  // bytes on each side of an array
constexpr size_t sector = 32;     // bytes that memory moves at once
constexpr size_t told = 3;        // faults that are spelled out

// ---- what is heard while a kernel runs

struct Fault {
  const Tried* array;
  int64_t element;
  bool write, outside;
  uint3 block, thread;
  const void* pc;
};

// What is heard now: the arrays, the faults, one of each line; the sectors that warps ask for, where these are counted.
struct {
  const std::vector<std::unique_ptr<Tried>>* arrays = nullptr;
  const std::vector<std::pair<const void*, size_t>>* others = nullptr;
  std::vector<Fault> faults;
  const void* last = nullptr;
  bool counting = false;
  std::map<std::pair<unsigned, const void*>, unsigned> turns;  // of a thread at a line: how often it came by
  struct {
    size_t block = SIZE_MAX;
    unsigned thread = 0;
    uintptr_t end = 0;
    const void *first_pc = nullptr, *pc = nullptr;
    unsigned turn = 0;
  } last_counted;
  // A warp's access: its block and warp, the line, which time. The lanes of a warp ask for a sector together.
  std::set<std::tuple<size_t, const void*, unsigned, uintptr_t>> asked;
  std::set<uintptr_t> touched;
} heard;

unsigned thread_in_block() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

// A load of a float4 is heard as four, one after the other, of different code: neighbours within 16 bytes are then one
// access, that of the first.
void count(uintptr_t address, size_t bytes, const void* pc) {
  const size_t block = blockIdx.x + size_t(gridDim.x) * (blockIdx.y + size_t(gridDim.y) * blockIdx.z);
  const unsigned thread = thread_in_block();
  auto& last = heard.last_counted;
  const bool goes_on =
      last.block == block && last.thread == thread && last.end == address && last.pc != pc && address % 16 != 0;
  if (!goes_on) {
    if (block != last.block) heard.turns.clear();
    last = {block, thread, address, pc, pc, heard.turns[{thread, pc}]++};
  }
  last.end = address + bytes, last.pc = pc;
  for (uintptr_t s = address / sector; s <= (address + bytes - 1) / sector; s++) {
    heard.asked.insert({block * 32 + thread / 32, last.first_pc, last.turn, s});
    heard.touched.insert(s);
  }
}

void hear(uintptr_t address, size_t bytes, bool write, const void* pc) {
  heard.last = pc;
  for (const auto& array : *heard.arrays) {
    const uintptr_t begin = uintptr_t(array->memory), end = begin + array->size() * array->element_bytes;
    if (address + bytes <= begin - room || address >= end + room) continue;
    if (heard.counting) count(address, bytes, pc);
    const auto fault = [&](int64_t element, bool outside) {
      const bool known = std::any_of(heard.faults.begin(), heard.faults.end(),
                                     [&](const Fault& f) { return f.pc == pc && f.array == array.get(); });
      if (!known) heard.faults.push_back({array.get(), element, write, outside, blockIdx, threadIdx, pc});
    };
    const int64_t size = int64_t(array->element_bytes);
    for (int64_t at = int64_t(address - begin), left = int64_t(bytes); left > 0; at += size, left -= size) {
      const int64_t element = at < 0 ? (at - size + 1) / size : at / size;
      if (at < 0 || element >= int64_t(array->size())) {
        fault(element, true);
        break;
      }
      if (write)
        array->written[size_t(element)] = true;
      else if (!array->written[size_t(element)])
        fault(element, false);
    }
    return;
  }
  for (const auto& [memory, size] : *heard.others)
    if (heard.counting && address - uintptr_t(memory) < size) count(address, bytes, pc);
}

std::string line_of(const void* pc) {
  return source_lines(static_cast<const char*>(pc) - 1).front();
}

std::string in_words(const Fault& f) {
  const Tried& a = *f.array;
  std::string where = format("%s[%lld]", a.name, static_cast<long long>(f.element));
  if (a.rows > 1 && f.element >= 0)
    where += format(" (row %zu, column %zu)", size_t(f.element) / a.columns, size_t(f.element) % a.columns);
  std::string text =
      format("block (%u,%u,%u) thread (%u,%u,%u) %s %s in %s", f.block.x, f.block.y, f.block.z, f.thread.x, f.thread.y,
             f.thread.z, f.write ? "writes" : "reads", where.c_str(), line_of(f.pc).c_str());
  if (f.outside) return text + format("; %s has %zu elements", a.name, a.size());
  return text + ", which nobody has written yet";
}

// What ends the process is told with the last line that touched global memory.
[[noreturn]] void on_signal(int number) {
  const char* what = number == SIGALRM  ? "it has not ended after 60 seconds: a loop without an end?"
                     : number == SIGFPE ? "an integer is divided by 0"
                                        : "it touches memory that is no array's";
  const std::string text = format("wrong: %s\n  the last access to global memory: %s\n", what,
                                  heard.last ? line_of(heard.last).c_str() : "none yet");
  [[maybe_unused]] const ssize_t n = write(STDOUT_FILENO, text.data(), text.size());
  _exit(1);
}

void catch_signals() {
  static char stack[1 << 16];
  const stack_t other = {.ss_sp = stack, .ss_flags = 0, .ss_size = sizeof stack};
  sigaltstack(&other, nullptr);
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_ONSTACK | SA_NODEFER;
  for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGALRM}) sigaction(number, &action, nullptr);
  alarm(60);
}

// ---- what is said of an output

// The number of floats between two.
uint64_t ulps(float a, float b) {
  const auto order = [](float x) {
    const int32_t i = std::bit_cast<int32_t>(x);
    return int64_t(i < 0 ? INT32_MIN - int64_t(i) : i);
  };
  const int64_t d = order(a) - order(b);
  return uint64_t(d < 0 ? -d : d);
}

// "in rows 3 to 4, column 7", of what differs; "" where that is everywhere.
std::string where_all(const Tried& a, const std::vector<size_t>& wrong) {
  size_t r0 = a.rows, r1 = 0, c0 = a.columns, c1 = 0;
  for (size_t i : wrong) {
    r0 = std::min(r0, i / a.columns), r1 = std::max(r1, i / a.columns);
    c0 = std::min(c0, i % a.columns), c1 = std::max(c1, i % a.columns);
  }
  const auto range = [](const char* what, size_t from, size_t to, size_t of) {
    if (of == 1 || (from == 0 && to == of - 1)) return std::string();
    return from == to ? format("%s %zu of %zu", what, from, of) : format("%ss %zu to %zu of %zu", what, from, to, of);
  };
  const std::string rows = range("row", r0, r1, a.rows), columns = range("column", c0, c1, a.columns);
  if (rows.empty() && columns.empty()) return "";
  return "; all of them in " + rows + (rows.empty() || columns.empty() ? "" : ", ") + columns;
}

struct Difference {
  Verdict verdict = Verdict::equal;
  std::string words;
};

Difference difference(const Tried& a) {
  const float* const got = static_cast<const float*>(a.memory);
  double largest = 0;
  for (double x : a.in_double) largest = std::max(largest, std::fabs(x));
  const double bound = double(a.longest_sum) * 0x1p-24 * largest;
  std::vector<size_t> differ, wrong;
  uint64_t apart = 0;
  for (size_t i = 0; i < a.size(); i++) {
    if (memcmp(&got[i], &a.in_float[i], sizeof(float)) == 0) continue;
    differ.push_back(i);
    if (!(std::fabs(got[i] - a.in_double[i]) <= bound))
      wrong.push_back(i);
    else
      apart = std::max(apart, ulps(got[i], a.in_float[i]));
  }
  if (differ.empty()) return {};
  const std::string by = apart == 0 ? "which are zeros of the other sign"
                                    : format("by at most %zu ulp%s", size_t(apart), apart == 1 ? "" : "s");
  if (wrong.empty())
    return {Verdict::rounded,
            format("%s: %zu of %zu elements have other bits than the reference's, %s\n  the order is defined in %s",
                   a.name, differ.size(), a.size(), by.c_str(), a.order)};
  const size_t first = wrong[0];
  const float g = got[first];
  std::string text = format("%s: row %zu, column %zu is %.9g, expected %.9g", a.name, first / a.columns,
                            first % a.columns, std::isnan(g) ? NAN : double(g), double(a.in_float[first]));
  text += std::isnan(g) ? a.kind == Tried::Kind::out && !a.written[first] ? ": nobody has written it"
                                                                          : ": a NaN, made of what nobody has written?"
                        : format(", off by %.3g", double(g) - double(a.in_float[first]));
  text += format("\n  %zu of %zu elements are wrong", wrong.size(), a.size()) + where_all(a, wrong);
  return {Verdict::wrong, text};
}

std::string list(const std::vector<std::string>& all) {
  std::string text;
  for (size_t i = 0; i < std::min(all.size(), told); i++) text += "\n  " + all[i];
  if (all.size() > told) text += format("\n  and more: %zu in all", all.size());
  return text;
}

}  // namespace

// ---- arrays

Tried::Tried(const char* name, Kind kind, size_t rows, size_t columns, size_t bytes)
    : name(name),
      kind(kind),
      rows(rows),
      columns(columns),
      element_bytes(bytes),
      written(rows * columns, kind != Kind::out) {
  const size_t all = size() * bytes + 2 * room;
  void* const p = mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  require(p != MAP_FAILED, "try: no memory for %zu bytes", all);
  memset(p, 0xFF, all);
  memory = static_cast<char*>(p) + room;
}

Tried::~Tried() {
  munmap(static_cast<char*>(memory) - room, size() * element_bytes + 2 * room);
}

Tried& Try::add(const char* name, Tried::Kind kind, size_t rows, size_t columns, size_t bytes) {
  return *arrays.emplace_back(std::make_unique<Tried>(name, kind, rows, columns, bytes));
}

Tried& Try::in(const char* name, size_t rows, size_t columns, const std::vector<float>& values) {
  Tried& a = add(name, Tried::Kind::in, rows, columns, sizeof(float));
  a.start = a.in_float = values;
  a.in_double.assign(values.begin(), values.end());
  return a;
}

Tried& Try::in(const char* name, size_t rows, size_t columns, float scale) {
  return in(name, rows, columns, random_values<float>(rows * columns, arrays.size() + 1, scale));
}

Tried& Try::sum(const char* name, size_t rows, size_t columns) {
  Tried& a = in(name, rows, columns);
  a.kind = Tried::Kind::sum;
  return a;
}

Tried& Try::out(const char* name, size_t rows, size_t columns) {
  Tried& a = in(name, rows, columns, std::vector<float>(rows * columns, NAN));
  a.kind = Tried::Kind::out;
  return a;
}

Tried& Try::scratch(const char* name, size_t rows, size_t columns) {
  return add(name, Tried::Kind::out, rows, columns, sizeof(float));
}

void Try::differences(const Tried& gradient, const Tried& x, const std::function<double(const double*)>& loss) {
  std::vector<double> values = gradient.in_double;
  for (size_t i = 0; gradient.kind == Tried::Kind::sum && i < values.size(); i++)
    values[i] -= double(gradient.start[i]);
  const double error = gradient_error([&](const auto& at) { return loss(at.data()); }, x.in_double, values);
  require(error <= 1e-7, "the reference's %s is %.1e from finite differences, expected at most 1e-7", gradient.name,
          error);
}

// ---- the judge

bool Try::say(Verdict what, const std::string& words) {
  if (what <= verdict) return false;
  verdict = what;
  said = shapes + "\n" + words;
  return true;
}

void Try::run_once(const std::function<void()>& launches) {
  for (const auto& a : arrays) {
    if (!a->start.empty()) memcpy(a->memory, a->start.data(), a->size() * sizeof(float));
    if (a->kind == Tried::Kind::out) {
      memset(a->memory, 0xFF, a->size() * a->element_bytes);
      std::fill(a->written.begin(), a->written.end(), false);
    }
  }
  heard.faults.clear();
  simt::shadow::listener = hear;
  heard.arrays = &arrays;
  heard.others = &others;
  others.clear();
  struct Deaf {
    ~Deaf() { simt::shadow::listener = nullptr; }
  } deaf;
  launches();
}

void Try::judge(const std::function<void()>& launches) {
  if (over) return;
  using simt::Order;
  std::map<const Tried*, std::vector<float>> forward;
  for (Order order : {Order::forward, Order::reverse, Order::priority}) {
    simt::config.order = order;
    std::string refusal;
    try {
      run_once(launches);
    } catch (const Error& e) {
      refusal = e.what();
    }
    // A fault in memory comes first: others may follow from it.
    std::vector<std::string> outside, unordered, unwritten;
    for (const Fault& f : heard.faults) (f.outside ? outside : unwritten).push_back(in_words(f));
    const std::vector<std::string>& races = simt::races();
    for (const std::string& race : races) {
      const auto says = [&](const char* words) { return race.find(words) != race.npos; };
      (says(" past the ") ? outside : says("written yet") ? unwritten : unordered).push_back(race);
    }
    if (!outside.empty())
      over = say(Verdict::outside, "out of bounds:" + list(outside));
    else if (!unordered.empty())
      over = say(Verdict::race, "a race, or a barrier that is missing:" + list(unordered));
    else if (!refusal.empty() && races.empty())
      over = say(Verdict::refused, "the emulator stops:\n  " + refusal);
    else if (!unwritten.empty())
      over = say(Verdict::unwritten, "a read of what nobody has written:" + list(unwritten));
    if (over) return;

    for (const auto& array : arrays) {
      const Tried& a = *array;
      if (a.start.empty()) continue;
      const float* const got = a;
      const std::vector<float> values(got, got + a.size());
      if (a.kind == Tried::Kind::in && memcmp(got, a.start.data(), a.size() * sizeof(float)) != 0)
        over = say(Verdict::wrong, format("%s is an input, and it was written to", a.name));
      if (a.kind != Tried::Kind::in) {
        const Difference d = difference(a);
        over = say(d.verdict, d.words) && d.verdict == Verdict::wrong;
        if (order == Order::forward) forward[&a] = values;
        if (!unsteady && d.verdict == Verdict::rounded && memcmp(forward[&a].data(), got, a.size() * sizeof(float))) {
          said += "\n  Its bits change with which thread comes first: an atomic sum has no order";
          unsteady = true;
        }
      }
      if (over) return;
    }
  }
  // Once more, to count.
  simt::config.order = Order::forward;
  heard.asked.clear(), heard.touched.clear(), heard.turns.clear();
  heard.last_counted = {};
  heard.counting = true;
  run_once(launches);
  heard.counting = false;
  asked_bytes = heard.asked.size() * sector;
  least_bytes = heard.touched.size() * sector;
}

Try tried(void (*exercise)(Try&), const std::string& name) {
  catch_signals();
  Try t;
  exercise(t);
  alarm(0);
  const char* const names[] = {
      "equal to the bit", "right, but in another order", "wrong", "wrong", "wrong", "wrong", "wrong"};
  t.said = std::string(names[int(t.verdict)]) + (t.said.empty() ? "" : ": " + t.said) + "\n";
  if (t.verdict <= Verdict::rounded) {
    t.said += format("bytes: warps ask memory for %zu, in sectors of 32; %zu is what there is to read and write once\n",
                     t.asked_bytes, t.least_bytes);
    std::ifstream known("tests/exercises/project_bytes.txt");
    std::string of, file;
    for (size_t bytes; known >> of >> bytes >> file;)
      if (of == name)
        t.said += format("       the project's kernel (%s) asks for %zu: yours is %.2f of that\n", file.c_str(), bytes,
                         double(t.asked_bytes) / double(bytes));
  }
  return t;
}

}  // namespace gated
