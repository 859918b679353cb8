"""The paper, figure by figure, table by table, theorem by theorem; `experiments` is the table."""
