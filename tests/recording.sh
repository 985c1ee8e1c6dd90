# Sourced by bash with a PATH without programs: every command of a page ends here, as bash understood it. It is written
# to $LOG as fields that end with a zero byte: folder, standard input, CACHELB_POLICY, number of words, words.
command_not_found_handle() {
    IFS= read -r -d '' input
    printf '%s\0' "$PWD" "$input" "${CACHELB_POLICY-}" $# "$@" >>"$LOG"
}
