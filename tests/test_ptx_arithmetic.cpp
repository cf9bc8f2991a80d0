// Arithmetic in PTX (ptx/translate.py, ptx/thread.h): every form on special and random operands, and on all of 16 bits.
// What is expected is computed here from the words of the PTX ISA (9.0), not by what thread.h has for it: two readings
// meet.
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <type_traits>

#include "tests/ptx_kernels.h"

namespace {

using namespace ptx_test;
using I = __int128;
using U = unsigned __int128;

// ---- arithmetic: every form on operands a, b, c of every width, in one kernel of a group

// Of operands a, b, c; nothing where the ISA does not say.
using Expected = std::function<std::optional<Word>(Word, Word, Word)>;
struct Operation {
  std::string text;  // $ is where the result goes; $1, $2 others of that type
  char result;       // s 16, r 32, d 64 bits, f a float, p a predicate
  Expected expected;
};
std::map<std::string, std::vector<Operation>> groups;
// By the letter of a result: its registers, and as what it is written.
const std::map<char, std::pair<std::string, std::string>> kinds = {
    {'s', {"%rs", "u16"}}, {'r', {"%r", "u32"}}, {'d', {"%rd", "u64"}}, {'f', {"%f", "f32"}}, {'p', {"%p", ""}}};

// In a group's code %rs1, %r1, %rd1, %f1, %p1 are a in each of the types, and so on for b and c; %p0 is false.
void add(const std::string& group, const std::string& text, char result, Expected expected) {
  groups[group].push_back({text, result, std::move(expected)});
}

// An expression of the operands.
#define GIVES(...)                                                                                        \
  [=]([[maybe_unused]] Word a, [[maybe_unused]] Word b, [[maybe_unused]] Word c) -> std::optional<Word> { \
    return __VA_ARGS__;                                                                                   \
  }

template <class T>
constexpr int width = int(8 * sizeof(T));
template <class T>
std::string type() {
  return (std::is_signed_v<T> ? "s" : "u") + words(width<T>);
}
template <class T>
constexpr char letter = sizeof(T) == 8   ? 'd'
                        : sizeof(T) == 4 ? 'r'
                                         : 's';
template <class T>
std::string stem() {
  return kinds.at(letter<T>).first;
}

float as_float(Word bits) {
  return std::bit_cast<float>(uint32_t(bits));
}
Word bits_of(float x) {
  return std::bit_cast<uint32_t>(x);
}

// In the text of a form T stands for the type, B for the same bits without a sign, @1 to @3 for the operands.
template <class T>
void integers(bool signs_too = true) {
  const std::string group = words(width<T>), t = type<T>();
  const auto into = [&](char result, std::string text, Expected expected) {
    for (const auto& [what, by] : {std::pair{"@", stem<T>()}, {"T", t}, {"B", "b" + group}})
      text = replaced(text, what, by);
    add(group, text, result, std::move(expected));
  };
  const auto form = [&](const std::string& text, Expected expected) { into(letter<T>, text, std::move(expected)); };
  const auto one = [&](const std::string& op, auto f) { form(op + " $, @1", GIVES(f(T(a)))); };
  const auto two = [&](const std::string& op, auto f) { form(op + " $, @1, @2", GIVES(f(T(a), T(b)))); };
  const auto compare = [&](const std::string& op, auto f) {
    into('p', "setp." + op + " $, @1, @2", GIVES(f(T(a), T(b))));
  };
  two("add.T", [](T a, T b) { return I(a) + b; });
  two("sub.T", [](T a, T b) { return I(a) - b; });
  two("mul.lo.T", [](T a, T b) { return U(I(a)) * U(I(b)); });
  two("max.T", [](T a, T b) { return std::max(a, b); });
  two("min.T", [](T a, T b) { return std::min(a, b); });
  // (a division by zero gives what the ISA calls unspecified)
  using Maybe = std::optional<Word>;
  form("div.T $, @1, @2", GIVES(T(b) ? Maybe(I(T(a)) / T(b)) : Maybe()));
  form("rem.T $, @1, @2", GIVES(T(b) ? Maybe(I(T(a)) % T(b)) : Maybe()));
  for (T n : {7, 10, 64}) {  // immediate operands
    const std::string with = ".T $, @1, " + words(int(n));
    form("div" + with, GIVES(I(T(a)) / n));
    form("rem" + with, GIVES(I(T(a)) % n));
    form("min" + with, GIVES(std::min(T(a), n)));
    form("add" + with, GIVES(I(T(a)) + n));
  }
  compare("eq.T", std::equal_to<T>());
  compare("ne.T", std::not_equal_to<T>());
  compare("lt.T", std::less<T>());
  compare("le.T", std::less_equal<T>());
  compare("gt.T", std::greater<T>());
  compare("ge.T", std::greater_equal<T>());
  into('p', "setp.gt.T $, @1, 100", GIVES(T(a) > T(100)));
  // Shifts are by 32 unsigned bits, and end at the width.
  form("shr.T $, @1, %r2", GIVES(I(T(a)) >> std::min<uint32_t>(uint32_t(b), width<T>)));
  form("selp.T $, @1, @2, %p3", GIVES(c & 1 ? a : b));
  one("mov.T", [](T a) { return a; });
  if constexpr (sizeof(T) > 2) {
    two("mul.hi.T", [](T a, T b) { return U(I(a)) * U(I(b)) >> width<T>; });
    form("mad.lo.T $, @1, @2, @3", GIVES(a * b + c));
  }
  if constexpr (sizeof(T) < 8) into(sizeof(T) == 4 ? 'd' : 'r', "mul.wide.T $, @1, @2", GIVES(I(T(a)) * T(b)));
  if constexpr (sizeof(T) == 4) into('d', "mad.wide.T $, @1, @2, %rd3", GIVES(Word(I(T(a)) * T(b)) + c));
  if constexpr (std::is_signed_v<T>) {
    one("neg.T", [](T a) { return -I(a); });
    one("abs.T", [](T a) { return a < 0 ? -I(a) : I(a); });
    if (signs_too) integers<std::make_unsigned_t<T>>();
  } else {
    compare("lo.T", std::less<T>());
    compare("ls.T", std::less_equal<T>());
    compare("hi.T", std::greater<T>());
    compare("hs.T", std::greater_equal<T>());
    compare("eq.B", std::equal_to<T>());
    compare("ne.B", std::not_equal_to<T>());
    two("and.B", std::bit_and<T>());
    two("or.B", std::bit_or<T>());
    two("xor.B", std::bit_xor<T>());
    one("not.B", [](T a) { return ~Word(a); });
    form("and.B $, @1, -2", GIVES(a & ~Word{1}));
    form("or.B $, @1, 0x55", GIVES(a | 0x55));
    form("mov.B $, @2", GIVES(b));
    form("selp.B $, 3, @2, %p3", GIVES(c & 1 ? 3 : b));
    form("shl.B $, @1, %r2", GIVES(uint32_t(b) < width<T> ? a << uint32_t(b) : 0));
    form("shr.B $, @1, %r2", GIVES(uint32_t(b) < width<T> ? T(a) >> uint32_t(b) : 0));
  }
}

// An integer as the float nearest to it, of two the even one.
float nearest(bool negative, U magnitude) {
  int shift = 0;
  while (magnitude >> shift >> 24) shift++;
  U kept = magnitude >> shift;
  const U rest = magnitude - (kept << shift), half = shift ? U{1} << (shift - 1) : 1;
  kept += shift && (rest > half || (rest == half && kept & 1));
  return std::ldexp(float(uint32_t(kept)), shift) * (negative ? -1.f : 1.f);
}

// cvt: what is cut off or extended; bytes lie in registers of 16 bits, which take the sign of one.
template <class To, class From>
void conversion() {
  add("16", with("cvt.#.# $, #1", type<To>(), type<From>(), stem<From>()), letter<To>, GIVES(I(To(From(a)))));
}
template <class T, class... All>
void conversions() {
  (conversion<T, All>(), ...);
  add("16", with("cvt.rn.f32.# $, #1", type<T>(), stem<T>()), 'f', [](Word a, Word, Word) {
    const I x = T(a);
    return bits_of(nearest(x < 0, U(x < 0 ? -x : x)));
  });
  add("f32", with("cvt.rzi.#.f32 $, %f1", type<T>()), letter<T>, [](Word a, Word, Word) -> std::optional<Word> {
    const long double x = as_float(a);  // (holds every integer of 64 bits)
    if (x != x) return sizeof(T) == 8 ? Word{1} << 63 : 0;
    constexpr T least = std::numeric_limits<T>::min(), most = std::numeric_limits<T>::max();
    return Word(I(x <= least ? least : x >= most ? most : T(std::trunc(x))));
  });
}
template <class... All>
void all_conversions() {
  (conversions<All, All...>(), ...);
}

Word computed(float x) {
  return std::isnan(x) ? 0x7fffffff : bits_of(x);
}

// a b + c with one rounding. A sum of 113 bits that is not exact is made odd: then its rounding to 24 bits is that of
// the exact sum.
float fused(float a, float b, float c) {
  using Q = __float128;
  const Q product = Q(a) * Q(b), sum = product + Q(c), back = sum - product;
  const Q error = (product - (sum - back)) + (Q(c) - back);
  if (!std::isfinite(float(sum)) || error == 0) return float(sum);
  U bits = std::bit_cast<U>(sum);
  if ((error < 0) != (sum < 0)) bits--;
  return float(std::bit_cast<Q>(bits | 1));
}

// Of the two bf16 that x lies between, the nearer one, and of equally near ones the even one.
Word to_bf16(float x) {
  if (std::isnan(x)) return 0x7fff;
  const uint32_t below = uint32_t(bits_of(x)) & 0xffff0000, above = below + 0x10000;
  if (std::isinf(x)) return below >> 16;
  const auto value = [](uint32_t bits) {
    return std::isinf(as_float(bits)) ? std::copysign(0x1p128, as_float(bits)) : double(as_float(bits));
  };
  const double down = std::abs(x - value(below)), up = std::abs(value(above) - x);
  return (down < up || (down == up && !(below & 0x10000)) ? below : above) >> 16;
}

void floats() {
  const auto form = [](const std::string& text, char result, Expected f) { add("f32", text, result, std::move(f)); };
  const auto two = [&](const std::string& op, auto f) {
    form(op + " $, %f1, %f2", 'f', GIVES(computed(f(as_float(a), as_float(b)))));
  };
  // Doubles have more than twice the bits of a float: rounding twice is rounding once.
  two("add.rn.f32", [](double a, double b) { return float(a + b); });
  two("sub.rn.f32", [](double a, double b) { return float(a - b); });
  two("mul.rn.f32", [](double a, double b) { return float(a * b); });
  two("div.rn.f32", [](double a, double b) { return float(a / b); });
  const auto largest = [](bool max) {
    return [max](float a, float b) {
      if (std::isnan(a)) return b;
      if (std::isnan(b)) return a;
      if (a == 0 && b == 0) return std::signbit(a) == max ? b : a;  // +0 is more than -0
      return (a > b) == max ? a : b;
    };
  };
  two("max.f32", largest(true));
  two("min.f32", largest(false));
  const auto one = [&](const std::string& op, auto f) { form(op + " $, %f1", 'f', GIVES(computed(f(as_float(a))))); };
  one("rcp.rn.f32", [](double a) { return float(1 / a); });
  one("sqrt.rn.f32", [](double a) { return float(std::sqrt(a)); });
  form("fma.rn.f32 $, %f1, %f2, %f3", 'f', GIVES(computed(fused(as_float(a), as_float(b), as_float(c)))));
  form("add.rn.f32 $, %f1, 0f3F800001", 'f', GIVES(computed(float(double(as_float(a)) + as_float(0x3f800001)))));
  // (which NaN these make of a NaN is not said)
  const auto but_nan = [](float a, Word result) { return std::isnan(a) ? std::nullopt : std::optional(result); };
  form("neg.f32 $, %f1", 'f', GIVES(but_nan(as_float(a), a ^ 0x80000000)));
  form("abs.f32 $, %f1", 'f', GIVES(but_nan(as_float(a), a & 0x7fffffff)));
  // "Copy sign bit of a into value of b"
  const auto copysign = [](Word a, Word b) { return (b & 0x7fffffff) | (a & 0x80000000); };
  form("copysign.f32 $, %f1, %f2", 'f', GIVES(copysign(a, b)));
  const auto compare = [&](const std::string& how, auto f) {
    form("setp." + how + ".f32 $, %f1, %f2", 'p', GIVES(f(as_float(a), as_float(b))));
  };
  const auto ordered = [&](const std::string& how, auto f) {  // false where one is a NaN; with u, true
    compare(how, [f](float a, float b) { return !std::isnan(a) && !std::isnan(b) && f(a, b); });
    compare(how + "u", [f](float a, float b) { return std::isnan(a) || std::isnan(b) || f(a, b); });
  };
  ordered("eq", [](double a, double b) { return a == b; });
  ordered("ne", [](double a, double b) { return a < b || a > b; });
  ordered("lt", [](double a, double b) { return a < b; });
  ordered("le", [](double a, double b) { return a <= b; });
  ordered("gt", [](double a, double b) { return a > b; });
  ordered("ge", [](double a, double b) { return a >= b; });
  compare("num", [](float a, float b) { return !std::isnan(a) && !std::isnan(b); });
  compare("nan", [](float a, float b) { return std::isnan(a) || std::isnan(b); });
  form("cvt.rn.bf16x2.f32 $, %f1, %f2", 'r', [](Word a, Word b, Word) {  // a is the upper half
    return to_bf16(as_float(a)) << 16 | to_bf16(as_float(b));
  });
  form("cvt.rn.bf16.f32 $, %f1", 's', GIVES(to_bf16(as_float(a))));
  // Moves keep each bit of a NaN; what an operation has made has one NaN, wherever it goes.
  const auto sum = [](Word a, Word b) { return computed(float(double(as_float(a)) + as_float(b))); };
  form("mov.f32 $, %f1", 'f', GIVES(a));
  form("mov.f32 $, 0f7F800001", 'f', GIVES(0x7f800001));
  form("mov.b32 $, %f1", 'r', GIVES(a));
  form("mov.b32 $, %r1", 'f', GIVES(a));
  form("selp.f32 $, %f1, %f2, %p3", 'f', GIVES(c & 1 ? a : b));
  form("add.rn.f32 $1, %f1, %f2; mov.f32 $, $1", 'f', GIVES(sum(a, b)));
  form("add.rn.f32 $1, %f1, %f2; selp.f32 $, $1, %f3, %p3", 'f', GIVES(c & 1 ? sum(a, b) : c));
  form("mov.f32 $, %f3; @%p3 add.rn.f32 $, %f1, %f2", 'f', GIVES(c & 1 ? sum(a, b) : c));
  form("add.rn.f32 $1, %f1, %f2; mov.f32 $, %f3; @!%p3 mov.f32 $, $1", 'f', GIVES(c & 1 ? c : sum(a, b)));
  form("add.rn.f32 $, %f1, %f2", 'r', GIVES(sum(a, b)));
  form("mov.f32 $, 0f00000000; @%p3 mul.rn.f32 $, %f1, %f2", 'f',
       GIVES(c & 1 ? computed(float(double(as_float(a)) * as_float(b))) : 0));
  form("add.rn.f32 %f800, %f1, %f2; mov.b32 $, %f800", 'r', GIVES(sum(a, b)));
  form("add.rn.f32 %f801, %f1, %f2; mov.b64 $, {%r3, %f801}", 'd', GIVES(sum(a, b) << 32 | uint32_t(c)));
  const auto apart = [](Word a, Word b) { return computed(float(double(as_float(a)) - as_float(b))); };
  form("sub.rn.f32 $1, %f1, %f2; copysign.f32 $, $1, %f3", 'f', GIVES(copysign(apart(a, b), c)));
  form("sub.rn.f32 $1, %f1, %f2; copysign.f32 $, %f3, $1", 'f', GIVES(copysign(c, apart(a, b))));
}

// Words of bits, 32 at a time, and predicates.
void bit_operations() {
  add("32", "popc.b32 $, %r1", 'r', GIVES(std::popcount(uint32_t(a))));
  add("32", "brev.b32 $, %r1", 'r', [](Word a, Word, Word) {
    Word d = 0;
    for (int i = 0; i < 32; i++) d = d << 1 | (a >> i & 1);
    return d;
  });
  // 31 - the place of the highest 1
  add("32", "bfind.shiftamt.u32 $, %r1", 'r', [](Word a, Word, Word) {
    for (int i = 31; i >= 0; i--)
      if (a >> i & 1) return Word(31 - i);
    return Word(0xffffffff);
  });
  add("32", "prmt.b32 $, %r1, %r2, %r3", 'r', [](Word a, Word b, Word c) {
    const Word all = b << 32 | uint32_t(a);
    Word d = 0;
    for (int i = 0; i < 4; i++) {
      const Word pick = c >> 4 * i & 15, byte = all >> 8 * (pick & 7) & 255;
      d |= (pick & 8 ? Word(byte >> 7 ? 255 : 0) : byte) << 8 * i;
    }
    return d;
  });
  // (of the third and fourth operand 8 bits count)
  const auto bfi = [](Word a, Word b, Word from, Word count, Word bits = 32) {
    for (Word i = 0; i < (count & 255) && (from & 255) + i < bits; i++) {
      const Word at = Word{1} << ((from & 255) + i);
      b = a >> i & 1 ? b | at : b & ~at;
    }
    return b;
  };
  add("32", "shr.u32 $1, %r3, 8; bfi.b32 $, %r1, %r2, %r3, $1", 'r', GIVES(bfi(a, b, c, uint32_t(c) >> 8)));
  add("32", "and.b32 $1, %r3, 63; shr.u32 $2, %r3, 6; and.b32 $2, $2, 63; bfi.b32 $, %r1, %r2, $1, $2", 'r',
      GIVES(bfi(a, b, c & 63, c >> 6 & 63)));
  add("64", "cvt.u32.u64 $1, %rd3; shr.u32 $2, $1, 8; bfi.b64 $, %rd1, %rd2, $1, $2", 'd',
      GIVES(bfi(a, b, c, uint32_t(c) >> 8, 64)));
  add("64",
      "cvt.u32.u64 $1, %rd3; shr.u32 $2, $1, 7; and.b32 $1, $1, 127; and.b32 $2, $2, 127; "
      "bfi.b64 $, %rd1, %rd2, $1, $2",
      'd', GIVES(bfi(a, b, c & 127, c >> 7 & 127, 64)));
  // Pieces of a word, the lowest first.
  add("64", "mov.b64 $, {%r1, %r2}", 'd', GIVES(b << 32 | uint32_t(a)));
  add("64", "mov.b64 $, {%rs1, %rs2, %rs3, %rs1}", 'd',
      GIVES(a << 48 | Word(uint16_t(c)) << 32 | uint32_t(uint16_t(b)) << 16 | uint16_t(a)));
  add("64", "mov.b64 {$, _}, %rd1", 'r', GIVES(a));
  add("64", "mov.b64 {$1, $}, %rd1", 'r', GIVES(a >> 32));
  add("64", "mov.b64 {$1, $2, $, $3}, %rd1", 's', GIVES(a >> 32));
  add("32", "mov.b32 $, {%rs1, %rs2}", 'r', GIVES(b << 16 | uint16_t(a)));
  add("32", "mov.b32 {_, $}, %r1", 's', GIVES(a >> 16));
  add("32", "not.pred $, %p1", 'p', GIVES(~a & 1));
  add("32", "and.pred $, %p1, %p2", 'p', GIVES(a & b & 1));
  add("32", "or.pred $, %p1, %p2", 'p', GIVES((a | b) & 1));
  add("32", "xor.pred $, %p1, %p2", 'p', GIVES((a ^ b) & 1));
  add("32", "mov.pred $, %p2", 'p', GIVES(b & 1));
  add("32", "mov.pred $, 1; @%p2 mov.pred $, 0", 'p', GIVES(~b & 1));
}

// A thread takes three words and gives a word for each operation, of which it writes as many bytes as the result has.
const bool arithmetic = [] {
  integers<int16_t>();
  integers<int32_t>();
  integers<int64_t>();
  all_conversions<int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t>();
  floats();
  bit_operations();
  for (const auto& [group, operations] : groups) {
    std::string body =
        begin + with("mad.wide.u32 %rd11, %r4, 24, %rd1;\nmad.wide.u32 %rd13, %r4, #, %rd2;\n", 8 * operations.size());
    for (int i = 1; i <= 3; i++) {
      for (const char* to : {"u16 %rs", "u32 %r", "u64 %rd", "f32 %f"})
        body += with("ld.global.##, [%rd11+#];\n", to, i, 8 * i - 8);
      body += with("and.b32 %r10, %r#, 1;\nsetp.ne.s32 %p#, %r10, 0;\n", i, i);
    }
    for (size_t i = 0; i < operations.size(); i++) {
      const auto& [text, result, expected] = operations[i];
      const auto& [name, kind] = kinds.at(result);
      const std::string own = name + words(20 + i), at = with("[%rd13+#], ", 8 * i);
      std::string code = text;
      for (int other : {3, 2, 1})
        code = replaced(code, "$" + words(other), name + words(10 + other + (result == 'f' ? 4 * i + 200 : 0)));
      body += replaced(code, "$", own) + ";\n";
      body += result == 'p' ? with("selp.u32 %r10, 1, 0, #;\nst.global.u32 #%r10;\n", own, at)
                            : with("st.global.# ##;\n", kind, at, own);
    }
    entry("group" + group, two_pointers, body);
  }
  return true;
}();

std::vector<Word> special_words() {
  std::vector<Word> all = {~Word{1}, 0xffffffff80000000};
  for (int bits : {0, 2, 3, 5, 6, 15, 16, 31, 32, 63})  // powers of two, and what is beside them
    for (Word beside : {-1, 0, 1}) all.push_back((Word{1} << bits) + beside);
  const auto both_signs = [&](float x) { all.push_back(bits_of(x)), all.push_back(bits_of(-x)); };
  for (int power : {-149, -126, 0, 7, 8, 15, 16, 31, 32, 63, 64, 128}) {  // the last is infinity
    both_signs(std::ldexp(1.f, power));
    both_signs(std::nextafter(std::ldexp(1.f, power), 0.f));
  }
  for (float x : {0.5f, 1.5f, 2.5f, 127.5f, 1e-38f}) both_signs(x);
  for (Word nan : {0x7fc00000, 0x7f800001, 0x7fa54321}) all.push_back(nan), all.push_back(nan | 0x80000000);
  return all;
}

std::mt19937_64 random_words(42);

constexpr unsigned block = 128;  // threads
void run_group(const std::string& group, const std::vector<Word>& operands) {
  const std::vector<Operation>& operations = groups.at(group);
  const size_t n = operands.size() / 3;
  const Device<Word> in(operands), out(n * operations.size());
  require_run("group" + group, {unsigned(n / block)}, {block}, in, out);
  const Word* const results = out.host();
  for (size_t j = 0; j < operations.size(); j++) {
    const char kind = operations[j].result;
    const Word mask = kind == 'd' ? ~Word{0} : kind == 's' ? 0xffff : 0xffffffff;
    size_t wrong = 0;
    for (size_t i = 0; i < n; i++) {
      const Word a = in[3 * i], b = in[3 * i + 1], c = in[3 * i + 2], is = results[i * operations.size() + j];
      const std::optional<Word> expected = operations[j].expected(a, b, c);
      if (!expected || is == ((*expected & mask) | ~mask) || wrong++) continue;
      UNSCOPED_INFO(operations[j].text << " of " << std::hex << a << ", " << b << ", " << c << " gives " << (is & mask)
                                       << ", expected " << (*expected & mask));
    }
    CHECK(wrong == 0);
  }
}

std::vector<Word> operands() {
  const std::vector<Word> special = special_words();
  const auto any = [&] {
    const Word r = random_words();
    return r % 4 ? random_words() : special[r / 4 % special.size()];
  };
  std::vector<Word> all;
  for (Word a : special)
    for (Word b : special) all.insert(all.end(), {a, b, any()});
  for (Word shift = 0; shift < 71; shift++)
    for (int i = 0; i < 8; i++) all.insert(all.end(), {any(), random_words() << 32 | shift, any()});
  for (int i = 0; i < 2000; i++) {  // near one another, so that sums cancel
    const float x = as_float(0x3f000000 + random_words() % 0x2000000),
                y = as_float(0x3f000000 + random_words() % 0x2000000);
    const Word c = i % 2 ? bits_of(-x * y) + random_words() % 3 : bits_of(x * y * (i % 4 ? 0x1p-24f : 0x1p-49f));
    all.insert(all.end(), {bits_of(x), bits_of(y), c});
    all.insert(all.end(), {random_words(), random_words(), random_words()});
  }
  all.resize((all.size() / (3 * block) + 1) * 3 * block, 1);
  return all;
}

}  // namespace

TEST_CASE("Every form of arithmetic gives what the ISA says") {
  const std::vector<Word> all = operands();
  for (const auto& [group, operations] : groups) run_group(group, all);
}

TEST_CASE("Operations on 16 bits, for each of their values") {
  std::vector<Word> all;
  for (Word a = 0; a < 65536; a++) all.insert(all.end(), {a | random_words() << 16, random_words(), random_words()});
  run_group("16", all);
}
