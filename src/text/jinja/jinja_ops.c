/* text/jinja/jinja_ops.c - arithmetic and slices with Python's semantics. Integers that leave 64 bits are an error. */
#include <math.h>
#include <string.h>
#include "base/checked.h"
#include "base/limits.h"
#include "text/jinja/jinja_run.h"

static rd_status too_large(struct jrun *r)
{
    return jrun_fail(r, "the integer is too large (64 bits)");
}
static rd_status divide_by_zero(struct jrun *r)
{
    return jrun_fail(r, "division by zero");
}

static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

static rd_status int_power(struct jrun *r, int64_t a, int64_t b, struct jval *out)
{
    int64_t v = 1;

    if (b < 0) {
        if (a == 0) return jrun_fail(r, "0.0 cannot be raised to a negative power");
        *out = jval_float(pow((double)a, (double)b));
        return RD_OK;
    }
    while (b > 0) {
        if ((b & 1) && !checked_mul(v, a, &v)) return too_large(r);
        b >>= 1;
        if (b && !checked_mul(a, a, &a)) return too_large(r);
    }
    *out = jval_int(v);
    return RD_OK;
}

static rd_status int_op(struct jrun *r, enum jtoken_kind op, int64_t a, int64_t b, struct jval *out)
{
    int64_t v;

    if ((op == T_DIV || op == T_FLOORDIV || op == T_MOD) && b == 0) return divide_by_zero(r);
    switch (op) {
    case T_ADD:
        if (!checked_add(a, b, &v)) return too_large(r);
        break;
    case T_SUB:
        if (!checked_sub(a, b, &v)) return too_large(r);
        break;
    case T_MUL:
        if (!checked_mul(a, b, &v)) return too_large(r);
        break;
    case T_DIV:
        *out = jval_float((double)a / (double)b);
        return RD_OK;
    case T_FLOORDIV:
        if (b == -1 && a == INT64_MIN) return too_large(r);
        v = floor_div(a, b);
        break;
    case T_MOD:
        v = b == -1 ? 0 : a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
        break;
    default:
        return int_power(r, a, b, out);
    }
    *out = jval_int(v);
    return RD_OK;
}

/* Python's way: by the remainder, so that 1 // 0.1 is 9. */
static double floor_divide(double a, double b)
{
    double mod = fmod(a, b), div = (a - mod) / b, whole;

    if (mod != 0 && (b < 0) != (mod < 0)) div -= 1;
    if (div == 0) return copysign(0, a / b);
    whole = floor(div);
    return div - whole > 0.5 ? whole + 1 : whole;
}

static rd_status float_op(struct jrun *r, enum jtoken_kind op, double a, double b, struct jval *out)
{
    double v = 0;

    if ((op == T_DIV || op == T_FLOORDIV || op == T_MOD) && b == 0) return divide_by_zero(r);
    switch (op) {
    case T_ADD:
        v = a + b;
        break;
    case T_SUB:
        v = a - b;
        break;
    case T_MUL:
        v = a * b;
        break;
    case T_DIV:
        v = a / b;
        break;
    case T_FLOORDIV:
        v = floor_divide(a, b);
        break;
    case T_MOD:
        v = fmod(a, b);
        if (v != 0 && (v < 0) != (b < 0))
            v += b;
        else if (v == 0)
            v = copysign(0, b);
        break;
    default:
        if (a == 0 && b < 0) return jrun_fail(r, "0.0 cannot be raised to a negative power");
        if (a < 0 && b != floor(b)) return jrun_fail(r, "the power of a negative number is not real");
        v = pow(a, b);
        if (isinf(v) && !isinf(a) && !isinf(b)) return jrun_fail(r, "the number is too large");
    }
    *out = jval_float(v);
    return RD_OK;
}

static rd_status concat(struct jrun *r, struct jval a, struct jval b, struct jval *out)
{
    char *s;
    rd_status st;

    if (a.s->safe != b.s->safe && (st = jval_escape(r, a.s->safe ? b : a, a.s->safe ? &b : &a)) != RD_OK) return st;
    if (a.s->n + b.s->n > LIMIT_TEMPLATE_OUTPUT) return jrun_limit(r, "the template makes too long a text");
    if ((st = jrun_alloc(r, a.s->n + b.s->n + 1, 1, &s)) != RD_OK) return st;
    memcpy(s, a.s->s, a.s->n);
    memcpy(s + a.s->n, b.s->s, b.s->n);
    st = jval_str_view(r, s, a.s->n + b.s->n, out);
    if (st == RD_OK) out->s->safe = a.s->safe;
    return st;
}

static rd_status join_lists(struct jrun *r, struct jval a, struct jval b, struct jval *out)
{
    rd_status st = jval_list(r, a.kind, a.list->n + b.list->n, out);

    for (size_t i = 0; st == RD_OK && i < a.list->n; i++) st = jlist_push(r, out->list, a.list->items[i]);
    for (size_t i = 0; st == RD_OK && i < b.list->n; i++) st = jlist_push(r, out->list, b.list->items[i]);
    return st;
}

/* A string, list or tuple, times times. */
static rd_status repeat(struct jrun *r, struct jval v, int64_t times, struct jval *out)
{
    size_t n = v.kind == J_STR ? v.s->n : v.list->n, total;
    char *s;
    rd_status st;

    if (times < 0) times = 0;
    if (!checked_mul(n, (uint64_t)times, &total) || total > LIMIT_TEMPLATE_OUTPUT)
        return jrun_limit(r, "the template makes too long a text");
    if (v.kind != J_STR) {
        st = jval_list(r, v.kind, total, out);
        for (size_t i = 0; st == RD_OK && i < total; i++) st = jlist_push(r, out->list, v.list->items[i % n]);
        return st;
    }
    if ((st = jrun_alloc(r, total + 1, 1, &s)) != RD_OK) return st;
    if (n && (st = jrun_pay(r, (uint64_t)times / 4)) != RD_OK) return st;
    for (size_t i = 0; n && i < total; i += n) memcpy(s + i, v.s->s, n);
    if ((st = jval_str_view(r, s, total, out)) == RD_OK) out->s->safe = v.s->safe;
    return st;
}

static bool is_sequence(struct jval v)
{
    return v.kind == J_STR || v.kind == J_LIST || v.kind == J_TUPLE;
}

rd_status jinja_binary(struct jrun *r, enum jtoken_kind op, struct jval a, struct jval b, struct jval *out)
{
    static const char *const names[] = {"+", "-", "/", "//", "*", "%", "**"};
    struct jargs args = {0};

    if (op == T_MOD && a.kind == J_STR) {
        args.v = b.kind == J_TUPLE ? b.list->items : &b;
        args.n = b.kind == J_TUPLE ? b.list->n : 1;
        return jinja_percent(r, a.s, &args, out);
    }
    if (a.kind == J_UNDEF) return jrun_undefined(r, a);
    if (b.kind == J_UNDEF) return jrun_undefined(r, b);
    if (jval_is_int(a) && jval_is_int(b)) return int_op(r, op, jval_to_int(a), jval_to_int(b), out);
    if (jval_is_number(a) && jval_is_number(b)) return float_op(r, op, jval_to_float(a), jval_to_float(b), out);
    if ((a.kind == J_BIG && (b.kind == J_BIG || jval_is_number(b))) || (b.kind == J_BIG && jval_is_number(a)))
        return too_large(r);
    if (op == T_ADD && a.kind == b.kind && a.kind == J_STR) return concat(r, a, b, out);
    if (op == T_ADD && a.kind == b.kind && is_sequence(a)) return join_lists(r, a, b, out);
    if (op == T_MUL && is_sequence(a) && jval_is_int(b)) return repeat(r, a, jval_to_int(b), out);
    if (op == T_MUL && jval_is_int(a) && is_sequence(b)) return repeat(r, b, jval_to_int(a), out);
    if (op == T_ADD && a.kind == J_STR)
        return jrun_fail(r, "can only concatenate str (not \"%s\") to str", jval_type_name(b));
    return jrun_fail(r, "unsupported operand type(s) for %s: '%s' and '%s'", names[op - T_ADD], jval_type_name(a),
                     jval_type_name(b));
}

rd_status jinja_negate(struct jrun *r, struct jval a, struct jval *out)
{
    int64_t v;

    if (a.kind == J_FLOAT) {
        *out = jval_float(-a.f);
        return RD_OK;
    }
    if (!checked_sub((int64_t)0, jval_to_int(a), &v)) return too_large(r);
    *out = jval_int(v);
    return RD_OK;
}

/* One bound of a slice over n items as Python clips it. */
static int64_t slice_bound(struct jval v, int64_t n, int64_t low, int64_t high, int64_t missing)
{
    int64_t i;

    if (v.kind == J_NONE) return missing;
    i = jval_to_int(v);
    if (i < 0) i += n;
    return i < low ? low : i > high ? high : i;
}

static bool is_bound(struct jval v)
{
    return v.kind == J_NONE || jval_is_int(v);
}

static rd_status slice_str(struct jrun *r, struct jstr *s, int64_t from, int64_t step, size_t count, struct jval *out)
{
    struct jval *items;
    struct buf b;
    size_t n, start;
    rd_status st;

    if (step == 1) {
        start = jstr_offset(r, s, (size_t)from);
        n = jstr_offset(r, s, (size_t)from + count);
        return jval_str_view(r, s->s + start, n - start, out);
    }
    if ((st = jval_iterate(r, (struct jval){.kind = J_STR, .s = s}, &items, &n)) != RD_OK) return st;
    buf_init(&b);
    for (size_t i = 0; i < count; i++, from += step) buf_append(&b, items[from].s->s, items[from].s->n);
    return jrun_take_buf(r, &b, RD_OK, out);
}

rd_status jinja_slice(struct jrun *r, struct jval v, struct jval start, struct jval stop, struct jval step_value,
                      struct jval *out)
{
    int64_t from = 0, to = 0, step = 1, n_items;
    size_t n, count;
    rd_status st;

    if (v.kind == J_UNDEF) return jrun_undefined(r, v);
    if ((v.kind != J_STR && v.kind != J_LIST && v.kind != J_TUPLE && v.kind != J_RANGE) || !is_bound(start) ||
        !is_bound(stop) || !is_bound(step_value)) {
        *out = jval_undef(); /* jinja2: an item that is not there */
        return RD_OK;
    }
    if ((st = jval_length(r, v, &n)) != RD_OK) return st;
    n_items = (int64_t)n;
    step = slice_bound(step_value, 0, -(int64_t)(1u << 30), 1u << 30, 1);
    if (step == 0) return jrun_fail(r, "slice step cannot be zero");
    if (step > 0) {
        from = slice_bound(start, n_items, 0, n_items, 0);
        to = slice_bound(stop, n_items, 0, n_items, n_items);
        count = to > from ? (size_t)((to - from + step - 1) / step) : 0;
    } else {
        from = slice_bound(start, n_items, -1, n_items - 1, n_items - 1);
        to = slice_bound(stop, n_items, -1, n_items - 1, -1);
        count = from > to ? (size_t)((from - to - step - 1) / -step) : 0;
    }
    if (count == 0 && v.kind != J_RANGE) from = 0;
    if (v.kind == J_STR) {
        if ((st = slice_str(r, v.s, from, step, count, out)) == RD_OK) out->s->safe = v.s->safe;
        return st;
    }
    if (v.kind == J_RANGE) {
        out->kind = J_RANGE;
        if ((st = jrun_alloc(r, 1, sizeof(*out->range), &out->range)) != RD_OK) return st;
        *out->range = (struct jrange){v.range->start + from * v.range->step, v.range->step * step, (int64_t)count,
                                      v.range->start + to * v.range->step};
        return RD_OK;
    }
    st = jval_list(r, v.kind, count, out);
    for (size_t i = 0; st == RD_OK && i < count; i++)
        st = jlist_push(r, out->list, v.list->items[from + (int64_t)i * step]);
    return st;
}
