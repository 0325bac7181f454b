#if {CAP}
// c of c·tanh(s/c) on scores: the f32 with the bits CAP.
fn softcap() -> f32 {
    return bitcast<f32>({CAP}u);
}

#for (capped, slope_at, of) in (capped, slope_at, vec4<f32>) (capped_one, slope_of_one, f32)
// c·tanh(s/c). Its argument is bounded, because some drivers make tanh of exponentials that overflow.
fn {capped}(s: {of}) -> {of} {
    return softcap() * tanh(clamp(s / softcap(), {of}(-10.0), {of}(10.0)));
}

// The slope of `{capped}` where its value is `s`.
fn {slope_at}(s: {of}) -> {of} {
    let share = s / softcap();
    return 1.0 - share * share;
}

#end
#end
